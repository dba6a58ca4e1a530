/* Sums of products of pairs of bfloat16, a pair in each word: by AVX512-BF16, or in floats where a CPU or a compiler has
 * none of it. Products are exact in both; the instruction takes subnormal numbers, and gives them, as zeros. */
#ifndef SN_ADD_PAIRS_H
#define SN_ADD_PAIRS_H
typedef uint32_t sn_words __attribute__((vector_size(SN_VECTOR_BYTES)));
typedef uint32_t sn_words_u __attribute__((vector_size(SN_VECTOR_BYTES), aligned(2), may_alias));

/* As many numbers as fit a vector once they are floats; and as such. */
typedef uint16_t sn_narrow __attribute__((vector_size(SN_VECTOR_BYTES / 2), aligned(2), may_alias));
SN_INLINE sn_vec_f32 sn_widen(const uint16_t *from) {
#if defined(__AVX2__) && SN_VECTOR_BYTES == 32 && !defined(__clang__) /* what gcc makes of it takes five instructions */
    typedef short narrow __attribute__((vector_size(16), aligned(2), may_alias));
    return (sn_vec_f32)((sn_words)__builtin_ia32_pmovzxwd256(*(const narrow *)from) << 16);
#else
    return (sn_vec_f32)(__builtin_convertvector(*(const sn_narrow *)from, sn_words) << 16);
#endif
}

#if defined(__AVX512BF16__) && SN_VECTOR_BYTES == 64
#define SN_HAS_PAIRS 1
#include <immintrin.h>
SN_INLINE sn_vec_f32 sn_add_pairs(sn_vec_f32 sum, sn_words a, sn_words b) {
    return (sn_vec_f32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
#else
#define SN_HAS_PAIRS 0
SN_INLINE sn_vec_f32 sn_add_pairs(sn_vec_f32 sum, sn_words a, sn_words b) {
    sum += (sn_vec_f32)(a << 16) * (sn_vec_f32)(b << 16);
    sum += (sn_vec_f32)(a & 0xffff0000u) * (sn_vec_f32)(b & 0xffff0000u);
    return sum;
}
#endif
#endif
