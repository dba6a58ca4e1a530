/* Sums of products of pairs of bfloat16, a pair in each word: by AVX512-BF16, or in floats where a CPU or a compiler has
 * none of it. Products are exact in both; the instruction takes subnormal numbers, and gives them, as zeros. */
#ifndef SN_ADD_PAIRS_H
#define SN_ADD_PAIRS_H
typedef uint32_t sn_words __attribute__((vector_size(SN_VECTOR_BYTES)));
typedef uint32_t sn_words_u __attribute__((vector_size(SN_VECTOR_BYTES), aligned(2), may_alias));

#if defined(__AVX512BF16__) && SN_VECTOR_BYTES == 64
#include <immintrin.h>
SN_INLINE sn_vec_f32 sn_add_pairs(sn_vec_f32 sum, sn_words a, sn_words b) {
    return (sn_vec_f32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
SN_INLINE sn_vec_f32 sn_add_pairs(sn_vec_f32 sum, sn_words a, sn_words b) {
    sum += (sn_vec_f32)(a << 16) * (sn_vec_f32)(b << 16);
    sum += (sn_vec_f32)(a & 0xffff0000u) * (sn_vec_f32)(b & 0xffff0000u);
    return sum;
}
#endif
#endif
