/* Words of vectors in another order by the instructions of one CPU: gcc mixes two vectors by a mask that it does not know
 * as a constant with three instructions and more. Elsewhere sn_matmul.h does the same without. It stands in that file.
 */
#if defined(__AVX512F__) && SN_VECTOR_BYTES == 64 && (!defined(SN_LINKED) || defined(SN_TURNS))
#include <immintrin.h>
#define SN_TURN_WORDS 1
/* to[k * stride_to + u] = from[u * stride_from + k], 16 x 16 words: quarters of vectors come from memory in their place,
 * and no shuffle crosses them. */
SN_INLINE void sn_turn_words(float *to, int64_t stride_to, const float *from, int64_t stride_from) {
    SN_UNROLL for (int k = 0; k < 16; k += 4) {
        __m512d a[2], b[2];
        __m512 row[4];
        SN_UNROLL for (int j = 0; j < 4; ++j) {
            const float *at = from + j * stride_from + k;
            row[j] = _mm512_castps128_ps512(_mm_loadu_ps(at));
            row[j] = _mm512_insertf32x4(row[j], _mm_loadu_ps(at + 4 * stride_from), 1);
            row[j] = _mm512_insertf32x4(row[j], _mm_loadu_ps(at + 8 * stride_from), 2);
            row[j] = _mm512_insertf32x4(row[j], _mm_loadu_ps(at + 12 * stride_from), 3);
        }
        SN_UNROLL for (int j = 0; j < 2; ++j) {
            a[j] = _mm512_castps_pd(_mm512_unpacklo_ps(row[2 * j], row[2 * j + 1]));
            b[j] = _mm512_castps_pd(_mm512_unpackhi_ps(row[2 * j], row[2 * j + 1]));
        }
        _mm512_storeu_pd((double *)(to + k * stride_to), _mm512_unpacklo_pd(a[0], a[1]));
        _mm512_storeu_pd((double *)(to + (k + 1) * stride_to), _mm512_unpackhi_pd(a[0], a[1]));
        _mm512_storeu_pd((double *)(to + (k + 2) * stride_to), _mm512_unpacklo_pd(b[0], b[1]));
        _mm512_storeu_pd((double *)(to + (k + 3) * stride_to), _mm512_unpackhi_pd(b[0], b[1]));
    }
}
#elif defined(__AVX__) && SN_VECTOR_BYTES == 32 && (!defined(SN_LINKED) || defined(SN_TURNS))
#include <immintrin.h>
#define SN_TURN_WORDS 1
/* The same of 8 x 8 words, by halves of vectors. */
SN_INLINE void sn_turn_words(float *to, int64_t stride_to, const float *from, int64_t stride_from) {
    SN_UNROLL for (int k = 0; k < 8; k += 4) {
        __m256d a[2], b[2];
        __m256 row[4];
        SN_UNROLL for (int j = 0; j < 4; ++j) {
            const float *at = from + j * stride_from + k;
            row[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)), _mm_loadu_ps(at + 4 * stride_from), 1);
        }
        SN_UNROLL for (int j = 0; j < 2; ++j) {
            a[j] = _mm256_castps_pd(_mm256_unpacklo_ps(row[2 * j], row[2 * j + 1]));
            b[j] = _mm256_castps_pd(_mm256_unpackhi_ps(row[2 * j], row[2 * j + 1]));
        }
        _mm256_storeu_pd((double *)(to + k * stride_to), _mm256_unpacklo_pd(a[0], a[1]));
        _mm256_storeu_pd((double *)(to + (k + 1) * stride_to), _mm256_unpackhi_pd(a[0], a[1]));
        _mm256_storeu_pd((double *)(to + (k + 2) * stride_to), _mm256_unpacklo_pd(b[0], b[1]));
        _mm256_storeu_pd((double *)(to + (k + 3) * stride_to), _mm256_unpackhi_pd(b[0], b[1]));
    }
}
#define SN_EIGHT_SUMS 1
/* to[i] = the sum of the lanes of vector i: the same pairs as one vector after the other would add. */
SN_INLINE void sn_eight_sums(float *to, const float *from) {
    __m256 sum[8];
    SN_UNROLL for (int i = 0; i < 8; ++i) sum[i] = _mm256_load_ps(from + 8 * i);
    SN_UNROLL for (int i = 0; i < 4; ++i) sum[i] = _mm256_hadd_ps(sum[2 * i], sum[2 * i + 1]);
    SN_UNROLL for (int i = 0; i < 2; ++i) sum[i] = _mm256_hadd_ps(sum[2 * i], sum[2 * i + 1]);
    const __m256 low = _mm256_permute2f128_ps(sum[0], sum[1], 0x20), high = _mm256_permute2f128_ps(sum[0], sum[1], 0x31);
    _mm256_storeu_ps(to, _mm256_add_ps(low, high));
}
#else
#define SN_TURN_WORDS 0
#endif
