/* Elementary functions for float and double that compilers vectorise.
 *
 * Every function is branch-free scalar code: called inside a loop marked `#pragma omp simd`, gcc and clang turn
 * it into vector code of whatever width the machine has. Names end in _f32 or _f64. All are right over the whole
 * range, zeros, denormals, overflow and infinities included; a NaN gives a NaN. Only sin, cos, atan and the
 * double pow and erf call libm, and so keep a loop scalar.
 *
 * Needs: -fno-math-errno -fno-trapping-math. Must not be built with -ffast-math: the reductions below are exact
 * only when sums are kept in the order written. Fused multiply-add is welcome but not needed.
 */
#ifndef SN_MATH_H
#define SN_MATH_H

#if defined(__GNUC__) || defined(__clang__)
#define SN_INLINE static inline __attribute__((always_inline, unused))
#else
#define SN_INLINE static inline
#endif

SN_INLINE uint32_t sn_bits_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
SN_INLINE float sn_from_bits_f32(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
SN_INLINE uint64_t sn_bits_f64(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
SN_INLINE double sn_from_bits_f64(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- exp and its kin ------------------------------------------------------------------------------------------
 * x = n ln2 + r with |r| <= ln2/2. Adding 1.5 * 2^23 (2^52) rounds to an integer and leaves n in the low bits,
 * ready to become an exponent. ln2 is split so that n * LN2_HI is exact. */

#define SN_LOG2E_F32 0x1.715476p+0f
#define SN_LN2_HI_F32 0x1.63p-1f
#define SN_LN2_LO_F32 -0x1.bd0106p-13f
#define SN_ROUND_F32 0x1.8p23f

#define SN_LOG2E_F64 0x1.71547652b82fep+0
#define SN_LN2_HI_F64 0x1.62e42feep-1
#define SN_LN2_LO_F64 0x1.a39ef35793c76p-33
#define SN_ROUND_F64 0x1.8p52

/* exp(r) - 1 for |r| <= ln2/2: minimax, relative error 1.4e-8 (float) and 2.7e-19 (double). */
SN_INLINE float sn_expm1_small_f32(float r) {
    float q = 0x1.6d9a56p-10f;
    q = q * r + 0x1.12290ep-7f;
    q = q * r + 0x1.555486p-5f;
    q = q * r + 0x1.5554aep-3f;
    q = q * r + 0x1p-1f;
    return r + r * r * q;
}
SN_INLINE double sn_expm1_small_f64(double r) {
    double q = 2.0924624234273091816e-9;
    q = q * r + 2.5109261023246102769e-8;
    q = q * r + 2.7557242187488718663e-7;
    q = q * r + 2.7557243611522575855e-6;
    q = q * r + 2.4801587361202495059e-5;
    q = q * r + 1.9841269886671035209e-4;
    q = q * r + 1.3888888888866527838e-3;
    q = q * r + 8.3333333333214371553e-3;
    q = q * r + 4.166666666666670194e-2;
    q = q * r + 0.16666666666666676789;
    q = q * r + 0.5;
    return r + r * r * q;
}

/* The power of two is applied in two steps, so that neither overflow nor a denormal result is met early. */
SN_INLINE float sn_exp_f32(float x) {
    float c = x < -104.0f ? -104.0f : x;
    c = c > 89.0f ? 89.0f : c;
    float t = c * SN_LOG2E_F32 + SN_ROUND_F32, n = t - SN_ROUND_F32;
    float r = (c - n * SN_LN2_HI_F32) - n * SN_LN2_LO_F32;
    uint32_t offset = c < 0.0f ? 127u + 64u : 127u - 64u;
    float back = c < 0.0f ? 0x1p-64f : 0x1p64f;
    float scale = sn_from_bits_f32((sn_bits_f32(t) + offset) << 23);
    return (scale + scale * sn_expm1_small_f32(r)) * back;
}
SN_INLINE double sn_exp_f64(double x) {
    double c = x < -746.0 ? -746.0 : x;
    c = c > 710.0 ? 710.0 : c;
    double t = c * SN_LOG2E_F64 + SN_ROUND_F64, n = t - SN_ROUND_F64;
    double r = (c - n * SN_LN2_HI_F64) - n * SN_LN2_LO_F64;
    uint64_t offset = c < 0.0 ? 1023u + 64u : 1023u - 64u;
    double back = c < 0.0 ? 0x1p-64 : 0x1p64;
    double scale = sn_from_bits_f64((sn_bits_f64(t) + offset) << 52);
    return (scale + scale * sn_expm1_small_f64(r)) * back;
}

/* exp of what is not above zero: one range. What lies below it is chosen last, for a vector then keeps no second copy of
 * what it computes with. */
SN_INLINE float sn_exp_below_f32(float x) {
    const float round = SN_ROUND_F32 + (127.0f + 64.0f);
    float c = x > 0.0f ? 0.0f : x, t = c * SN_LOG2E_F32 + round, n = t - round;
    float r = (c - n * SN_LN2_HI_F32) - n * SN_LN2_LO_F32;
    float scale = sn_from_bits_f32(sn_bits_f32(t) << 23);
    float y = (scale + scale * sn_expm1_small_f32(r)) * 0x1p-64f;
    return x < -104.0f ? 0.0f : y;
}
SN_INLINE double sn_exp_below_f64(double x) {
    const double round = SN_ROUND_F64 + (1023.0 + 64.0);
    double c = x > 0.0 ? 0.0 : x, t = c * SN_LOG2E_F64 + round, n = t - round;
    double r = (c - n * SN_LN2_HI_F64) - n * SN_LN2_LO_F64;
    double scale = sn_from_bits_f64(sn_bits_f64(t) << 52);
    double y = (scale + scale * sn_expm1_small_f64(r)) * 0x1p-64;
    return x < -746.0 ? 0.0 : y;
}

SN_INLINE float sn_expm1_f32(float x) {
    float c = x < -20.0f ? -20.0f : x;
    c = c > 89.0f ? 89.0f : c;
    float t = c * SN_LOG2E_F32 + SN_ROUND_F32, n = t - SN_ROUND_F32;
    float r = (c - n * SN_LN2_HI_F32) - n * SN_LN2_LO_F32;
    uint32_t offset = c > 64.0f ? 126u : 127u;
    float one = c > 64.0f ? 0.5f : 1.0f, back = c > 64.0f ? 2.0f : 1.0f;
    float scale = sn_from_bits_f32((sn_bits_f32(t) + offset) << 23);
    return copysignf((scale * sn_expm1_small_f32(r) + (scale - one)) * back, x);
}
SN_INLINE double sn_expm1_f64(double x) {
    double c = x < -40.0 ? -40.0 : x;
    c = c > 710.0 ? 710.0 : c;
    double t = c * SN_LOG2E_F64 + SN_ROUND_F64, n = t - SN_ROUND_F64;
    double r = (c - n * SN_LN2_HI_F64) - n * SN_LN2_LO_F64;
    uint64_t offset = c > 64.0 ? 1022u : 1023u;
    double one = c > 64.0 ? 0.5 : 1.0, back = c > 64.0 ? 2.0 : 1.0;
    double scale = sn_from_bits_f64((sn_bits_f64(t) + offset) << 52);
    return copysign((scale * sn_expm1_small_f64(r) + (scale - one)) * back, x);
}

/* tanh |x| = e / (e + 2) with e = expm1(2 |x|): no cancellation anywhere, one division. */
SN_INLINE float sn_tanh_f32(float x) {
    float c = 2.0f * fabsf(x);
    c = c > 20.0f ? 20.0f : c;
    float t = c * SN_LOG2E_F32 + SN_ROUND_F32, n = t - SN_ROUND_F32;
    float r = (c - n * SN_LN2_HI_F32) - n * SN_LN2_LO_F32;
    float scale = sn_from_bits_f32((sn_bits_f32(t) + 127u) << 23);
    float e = scale * sn_expm1_small_f32(r) + (scale - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}
SN_INLINE double sn_tanh_f64(double x) {
    double c = 2.0 * fabs(x);
    c = c > 40.0 ? 40.0 : c;
    double t = c * SN_LOG2E_F64 + SN_ROUND_F64, n = t - SN_ROUND_F64;
    double r = (c - n * SN_LN2_HI_F64) - n * SN_LN2_LO_F64;
    uint64_t one = 1023u;
    double scale = sn_from_bits_f64((sn_bits_f64(t) + one) << 52);
    double e = scale * sn_expm1_small_f64(r) + (scale - 1.0);
    return copysign(e / (e + 2.0), x);
}

/* sigmoid x = 1 / (1 + exp -|x|), times exp -|x| where x < 0: full relative accuracy in both tails. */
SN_INLINE float sn_sigmoid_f32(float x) {
    float c = -fabsf(x);
    c = c < -104.0f ? -104.0f : c;
    float t = c * SN_LOG2E_F32 + SN_ROUND_F32, n = t - SN_ROUND_F32;
    float r = (c - n * SN_LN2_HI_F32) - n * SN_LN2_LO_F32;
    float scale = sn_from_bits_f32((sn_bits_f32(t) + (127u + 64u)) << 23);
    float e = (scale + scale * sn_expm1_small_f32(r)) * 0x1p-64f;
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
SN_INLINE double sn_sigmoid_f64(double x) {
    double c = -fabs(x);
    c = c < -746.0 ? -746.0 : c;
    double t = c * SN_LOG2E_F64 + SN_ROUND_F64, n = t - SN_ROUND_F64;
    double r = (c - n * SN_LN2_HI_F64) - n * SN_LN2_LO_F64;
    double scale = sn_from_bits_f64((sn_bits_f64(t) + (1023u + 64u)) << 52);
    double e = (scale + scale * sn_expm1_small_f64(r)) * 0x1p-64;
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* ---- log and log1p --------------------------------------------------------------------------------------------
 * x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt 2). log(1 + f) by s = f / (2 + f), as in fdlibm. */

SN_INLINE float sn_log_join_f32(float f, float k) {
    float s = f / (2.0f + f), z = s * s, w = z * z;
    float odd = w * (0xccce13p-25f + w * 0xf89e26p-26f);
    float even = z * (0xaaaaaap-24f + w * 0x91e9eep-25f);
    float half = 0.5f * f * f;
    return k * 0x1.62e3p-1f - ((half - (s * (half + (odd + even)) + k * 0x1.2fefa2p-17f)) - f);
}
SN_INLINE double sn_log_join_f64(double f, double k) {
    double s = f / (2.0 + f), z = s * s, w = z * z;
    double odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    double even = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 +
                  w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    double half = 0.5 * f * f;
    return k * SN_LN2_HI_F64 - ((half - (s * (half + (odd + even)) + k * SN_LN2_LO_F64)) - f);
}

SN_INLINE float sn_log_f32(float x) {
    int small = x < 0x1p-126f;
    float y = small ? x * 0x1p25f : x;
    float lift = small ? 127.0f + 25.0f : 127.0f;
    uint32_t u = sn_bits_f32(y) + (0x3f800000u - 0x3f3504f3u);
    float k = (float)(int32_t)(u >> 23) - lift;
    float f = sn_from_bits_f32((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float result = sn_log_join_f32(f, k);
    result = x < INFINITY ? result : x;
    result = x > 0.0f ? result : (x == 0.0f ? -INFINITY : (float)NAN);
    return result;
}
SN_INLINE double sn_log_f64(double x) {
    int small = x < 0x1p-1022;
    double y = small ? x * 0x1p54 : x;
    double lift = small ? 0x1p52 + 1023.0 + 54.0 : 0x1p52 + 1023.0;
    uint64_t u = sn_bits_f64(y) + (0x3ff0000000000000u - 0x3fe6a09e00000000u);
    double k = sn_from_bits_f64((u >> 52) | 0x4330000000000000u) - lift;
    double f = sn_from_bits_f64((u & 0x000fffffffffffffu) + 0x3fe6a09e00000000u) - 1.0;
    double result = sn_log_join_f64(f, k);
    result = x < INFINITY ? result : x;
    result = x > 0.0 ? result : (x == 0.0 ? -INFINITY : (double)NAN);
    return result;
}

/* 2^k comes from 1 + x rounded; f = x 2^-k + (2^-k - 1) is then formed from x itself, so nothing is lost. */
SN_INLINE float sn_log1p_f32(float x) {
    uint32_t u = sn_bits_f32(1.0f + x) - 0x3f3504f3u;
    uint32_t shift = u & 0xff800000u;
    float k = (float)((int32_t)shift >> 23);
    float part = 0.25f * sn_from_bits_f32(0x40800000u - shift) - 1.0f;
    float f = (shift == 0 ? x : sn_from_bits_f32(sn_bits_f32(x) - shift)) + part;
    float result = copysignf(sn_log_join_f32(f, k), x);
    result = x < INFINITY ? result : x;
    result = x > -1.0f ? result : (x == -1.0f ? -INFINITY : (float)NAN);
    return result;
}
SN_INLINE double sn_log1p_f64(double x) {
    uint64_t u = sn_bits_f64(1.0 + x) - 0x3fe6a09e00000000u;
    uint64_t shift = u & 0xfff0000000000000u;
    double k = sn_from_bits_f64(((u + 0x4000000000000000u) >> 52) | 0x4330000000000000u) - (0x1p52 + 1024.0);
    double part = 0.25 * sn_from_bits_f64(0x4010000000000000u - shift) - 1.0;
    double f = (shift == 0 ? x : sn_from_bits_f64(sn_bits_f64(x) - shift)) + part;
    double result = copysign(sn_log_join_f64(f, k), x);
    result = x < INFINITY ? result : x;
    result = x > -1.0 ? result : (x == -1.0 ? -INFINITY : (double)NAN);
    return result;
}

SN_INLINE float sn_atanh_f32(float x) {
    float y = fabsf(x);
    return copysignf(0.5f * sn_log1p_f32(2.0f * y / (1.0f - y)), x);
}
SN_INLINE double sn_atanh_f64(double x) {
    double y = fabs(x);
    return copysign(0.5 * sn_log1p_f64(2.0 * y / (1.0 - y)), x);
}

/* ---- erf ------------------------------------------------------------------------------------------------------
 * x P(x^2) up to 1, then 1 - exp(Q(|x| - 2)), both minimax. For double, libm. */

SN_INLINE float sn_erf_f32(float x) {
    float y = fabsf(x), z = y * y, t = (y > 4.0f ? 4.0f : y) - 2.0f;
    z = z > 1.0f ? 1.0f : z;
    float p = 7.85386569009e-5f;
    p = p * z - 8.01019363637e-4f;
    p = p * z + 5.1883275058e-3f;
    p = p * z - 2.68538117209e-2f;
    p = p * z + 0.112835851398f;
    p = p * z - 0.37612625823f;
    p = p * z + 1.12837916573f;
    float q = -1.5662448349157704657e-5f;
    q = q * t + 1.3794099279396857942e-4f;
    q = q * t - 7.4339116916579298054e-4f;
    q = q * t + 3.5693355997286873566e-3f;
    q = q * t - 1.6457415872213379535e-2f;
    q = q * t - 0.92375007644150208465f;
    q = q * t - 4.4181621884167752336f;
    q = q * t - 5.364941367995951289f;
    float far = copysignf(1.0f - sn_exp_f32(q), x);
    float result = y > 1.0f ? far : x * p;
    return x == x ? result : x;
}
SN_INLINE double sn_erf_f64(double x) { return erf(x); }

/* ---- rounding, signs, choices: as torch defines them ----------------------------------------------------------
 * maximum and minimum give NaN when either side is NaN; relu keeps NaN; sign of NaN is 0. */

SN_INLINE float sn_sqrt_f32(float x) { return sqrtf(x); }
SN_INLINE double sn_sqrt_f64(double x) { return sqrt(x); }
SN_INLINE float sn_rsqrt_f32(float x) { return 1.0f / sqrtf(x); }
SN_INLINE double sn_rsqrt_f64(double x) { return 1.0 / sqrt(x); }
SN_INLINE float sn_abs_f32(float x) { return fabsf(x); }
SN_INLINE double sn_abs_f64(double x) { return fabs(x); }
SN_INLINE float sn_floor_f32(float x) { return floorf(x); }
SN_INLINE double sn_floor_f64(double x) { return floor(x); }
SN_INLINE float sn_ceil_f32(float x) { return ceilf(x); }
SN_INLINE double sn_ceil_f64(double x) { return ceil(x); }
SN_INLINE float sn_trunc_f32(float x) { return truncf(x); }
SN_INLINE double sn_trunc_f64(double x) { return trunc(x); }
SN_INLINE float sn_round_f32(float x) { return rintf(x); } /* half to even */
SN_INLINE double sn_round_f64(double x) { return rint(x); }

SN_INLINE float sn_relu_f32(float x) { return x < 0.0f ? 0.0f : x; }
SN_INLINE double sn_relu_f64(double x) { return x < 0.0 ? 0.0 : x; }
SN_INLINE float sn_sign_f32(float x) { return (x > 0.0f ? 1.0f : 0.0f) - (x < 0.0f ? 1.0f : 0.0f); }
SN_INLINE double sn_sign_f64(double x) { return (x > 0.0 ? 1.0 : 0.0) - (x < 0.0 ? 1.0 : 0.0); }
SN_INLINE float sn_maximum_f32(float a, float b) { return ((a > b) | (a != a)) ? a : b; }
SN_INLINE double sn_maximum_f64(double a, double b) { return ((a > b) | (a != a)) ? a : b; }
SN_INLINE float sn_minimum_f32(float a, float b) { return ((a < b) | (a != a)) ? a : b; }
SN_INLINE double sn_minimum_f64(double a, double b) { return ((a < b) | (a != a)) ? a : b; }

/* ---- libm -----------------------------------------------------------------------------------------------------*/

SN_INLINE float sn_sin_f32(float x) { return sinf(x); }
SN_INLINE double sn_sin_f64(double x) { return sin(x); }
SN_INLINE float sn_cos_f32(float x) { return cosf(x); }
SN_INLINE double sn_cos_f64(double x) { return cos(x); }
SN_INLINE float sn_atan_f32(float x) { return atanf(x); }
SN_INLINE double sn_atan_f64(double x) { return atan(x); }
/* In double, whose errors a float does not show. Signs, and what is none, as in C. */
SN_INLINE float sn_pow_f32(float x, float y) {
    const float size = (float)sn_exp_f64((double)y * sn_log_f64(fabs((double)x)));
    const float half = y * 0.5f;
    const int whole = truncf(y) == y, odd = whole & (truncf(half) != half);
    const int one = (x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (fabsf(y) == INFINITY));
    const int none = (x < 0.0f) & (x > -INFINITY) & !whole;
    const float sized = odd ? copysignf(size, x) : size;
    return one ? 1.0f : none ? NAN : sized;
}
SN_INLINE double sn_pow_f64(double x, double y) { return pow(x, y); }
SN_INLINE float sn_remainder_f32(float x, float y) { /* of the sign of y, as torch has it */
    const float rest = fmodf(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}
SN_INLINE double sn_remainder_f64(double x, double y) {
    const double rest = fmod(x, y);
    return rest != 0 && (y < 0) != (rest < 0) ? rest + y : rest;
}

/* Whole numbers of real ones: outside of their range, what the machine gives torch. C leaves that open. */
#if defined(__aarch64__)
#define SN_BEYOND(x, least, most) ((x) > 0 ? (most) : (x) < 0 ? (least) : 0)
#else
#define SN_BEYOND(x, least, most) (least)
#endif
SN_INLINE int64_t sn_to_i64(double x) {
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : SN_BEYOND(x, INT64_MIN, INT64_MAX);
}
SN_INLINE int32_t sn_to_i32(double x) {
    return x > -0x1p31 - 1 && x < 0x1p31 ? (int32_t)x : SN_BEYOND(x, INT32_MIN, INT32_MAX);
}
/* And back: of GCC 12's trunc -0.5 is -0.0, which no whole number is. */
SN_INLINE float sn_of_whole_f32(float x) { return x == 0 ? 0.0f : x; }
SN_INLINE double sn_of_whole_f64(double x) { return x == 0 ? 0.0 : x; }

#endif
