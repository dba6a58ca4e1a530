/* What is used of C's library, declared here: its own headers take a fifth of a build that does not optimise. They may
 * be read before or after.
 */
#ifndef SN_LIBRARY_H
#define SN_LIBRARY_H

#if defined(__GNUC__) || defined(__clang__)
typedef __SIZE_TYPE__ size_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __UINTPTR_TYPE__ uintptr_t;

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);

#define SN_OF_ONE(name) double name(double); float name##f(float);
#define SN_OF_TWO(name) double name(double, double); float name##f(float, float);
SN_OF_ONE(acos) SN_OF_ONE(acosh) SN_OF_ONE(asin) SN_OF_ONE(asinh) SN_OF_ONE(atan) SN_OF_ONE(atanh) SN_OF_ONE(ceil)
SN_OF_ONE(cos) SN_OF_ONE(cosh) SN_OF_ONE(erf) SN_OF_ONE(erfc) SN_OF_ONE(exp) SN_OF_ONE(exp2) SN_OF_ONE(fabs) SN_OF_ONE(floor)
SN_OF_ONE(log) SN_OF_ONE(log10) SN_OF_ONE(log2) SN_OF_ONE(rint) SN_OF_ONE(sin) SN_OF_ONE(sinh) SN_OF_ONE(sqrt)
SN_OF_ONE(tan) SN_OF_ONE(trunc)
SN_OF_TWO(atan2) SN_OF_TWO(copysign) SN_OF_TWO(fmod) SN_OF_TWO(hypot) SN_OF_TWO(pow)
float fmaf(float, float, float);
#undef SN_OF_ONE
#undef SN_OF_TWO

#ifndef INFINITY
#define INFINITY (__builtin_inff ())
#define NAN (__builtin_nanf (""))
#define isfinite(x) __builtin_isfinite (x)
#endif
#ifndef INT64_MAX
#define INT8_MIN (-128)
#define INT8_MAX 127
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define INT64_MIN (-__INT64_MAX__ - 1)
#define INT64_MAX __INT64_MAX__
#define UINT8_MAX 255
#endif
#else
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#endif
#endif
