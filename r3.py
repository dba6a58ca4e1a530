import torch, itertools
from stepnet import recurrent
from torch.utils.checkpoint import checkpoint
D=torch.float64
a=torch.randn(3,3,dtype=D).requires_grad_()
def thr(x,h):
    f=(h@a+x>0).to(x.dtype); return f, h*0.5+f*x
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx,x): return x*2,x*3
    @staticmethod
    def backward(ctx,g,g2): return (g*2 if g is not None else 0)+ (g2*3 if g2 is not None else 0)
for be in ("naive","eager","fn"):
 for ck in (0,1):
  for order in itertools.permutations(["retain","hook","w"],3):
    x=torch.randn(3,2,3,dtype=D).requires_grad_(); h=torch.randn(2,3,dtype=D).requires_grad_()
    f=lambda: recurrent(thr,x,h,backend=be)[1] if be!="fn" else Fn.apply(h)[1]
    r=checkpoint(f,use_reentrant=False) if ck else f()
    try:
        for o in order:
            if o=="retain": r.retain_grad()
            elif o=="hook": r.register_hook(lambda g:g*2)
            else: r.mul_(1.1)
        (r*r).sum().backward()
        print(be,ck,order,"ok",float(h.grad.sum().abs()>0), r.grad is not None)
    except Exception as e: print(be,ck,order,repr(e)[:80])
