/* Functions that few steps call: of libm, or as torch computes them.
 *
 * A type template: define SN_REAL, SN_(name) (its suffix) and SN_LIBM(name) (that of libm) first; all are undefined
 * at the end.
 */
SN_INLINE SN_REAL SN_(sn_tan)(SN_REAL x) { return SN_LIBM(tan)(x); }
SN_INLINE SN_REAL SN_(sn_asin)(SN_REAL x) { return SN_LIBM(asin)(x); }
SN_INLINE SN_REAL SN_(sn_acos)(SN_REAL x) { return SN_LIBM(acos)(x); }
SN_INLINE SN_REAL SN_(sn_sinh)(SN_REAL x) { return SN_LIBM(sinh)(x); }
SN_INLINE SN_REAL SN_(sn_cosh)(SN_REAL x) { return SN_LIBM(cosh)(x); }
SN_INLINE SN_REAL SN_(sn_asinh)(SN_REAL x) { return SN_LIBM(asinh)(x); }
SN_INLINE SN_REAL SN_(sn_acosh)(SN_REAL x) { return SN_LIBM(acosh)(x); }
SN_INLINE SN_REAL SN_(sn_exp2)(SN_REAL x) { return SN_LIBM(exp2)(x); }
SN_INLINE SN_REAL SN_(sn_log2)(SN_REAL x) { return SN_LIBM(log2)(x); }
SN_INLINE SN_REAL SN_(sn_log10)(SN_REAL x) { return SN_LIBM(log10)(x); }
SN_INLINE SN_REAL SN_(sn_erfc)(SN_REAL x) { return SN_LIBM(erfc)(x); }
SN_INLINE SN_REAL SN_(sn_atan2)(SN_REAL y, SN_REAL x) { return SN_LIBM(atan2)(y, x); }
SN_INLINE SN_REAL SN_(sn_hypot)(SN_REAL x, SN_REAL y) { return SN_LIBM(hypot)(x, y); }
SN_INLINE SN_REAL SN_(sn_fmod)(SN_REAL x, SN_REAL y) { return SN_LIBM(fmod)(x, y); }
SN_INLINE SN_REAL SN_(sn_copysign)(SN_REAL x, SN_REAL y) { return SN_LIBM(copysign)(x, y); }
/* lgamma of libm writes to a variable that all threads share. */
#ifndef SN_SPECIAL_H
#define SN_SPECIAL_H
extern double lgamma_r(double, int *);
#endif
SN_INLINE SN_REAL SN_(sn_lgamma)(SN_REAL x) {
    int sign;
    return lgamma_r(x, &sign);
}
/* As Python divides: floor(x / y) may be off by one. */
SN_INLINE SN_REAL SN_(sn_floor_divide)(SN_REAL x, SN_REAL y) {
    if (y == 0) return x / y;
    const SN_REAL rest = SN_LIBM(fmod)(x, y);
    SN_REAL whole = (x - rest) / y;
    if (rest != 0 && (y < 0) != (rest < 0)) whole -= 1;
    if (whole == 0) return SN_LIBM(copysign)(0, x / y);
    const SN_REAL near = SN_LIBM(floor)(whole);
    return whole - near > (SN_REAL)0.5 ? near + 1 : near;
}
/* As torch: by recurrence up to 10, then the asymptotic series. */
SN_INLINE SN_REAL SN_(sn_digamma)(SN_REAL v) {
    double x = v, less = 0;
    if (x == 0) return copysign(INFINITY, -x);
    if (x < 0) {
        if (x == trunc(x)) return NAN;
        less = 3.14159265358979323846 / tan(3.14159265358979323846 * (x - trunc(x)));
        x = 1 - x;
    }
    double total = 0;
    for (; x < 10; x += 1) total -= 1 / x;
    if (x == 10) return total + 2.25175258906672110764 - less;
    double y = 0;
    if (x < 1.0e17) {
        const double z = 1 / (x * x);
        y = z * (8.33333333333333333333e-2 + z * (-8.33333333333333333333e-3 + z * (3.96825396825396825397e-3 +
            z * (-4.16666666666666666667e-3 + z * (7.57575757575757575758e-3 + z * (-2.10927960927960927961e-2 +
            z * 8.33333333333333333333e-2))))));
    }
    return total + log(x) - 0.5 / x - y - less;
}
SN_INLINE SN_REAL SN_(sn_trigamma)(SN_REAL v) {
    double x = v, sign = 1, total = 0;
    if (x < 0.5) {
        const double s = sin(3.14159265358979323846 * x);
        sign = -1;
        total -= 9.86960440108935861883 / (s * s);
        x = 1 - x;
    }
    for (int k = 0; k < 6; ++k, x += 1) total += 1 / (x * x);
    const double z = 1 / (x * x);
    total += (1 + 1 / (2 * x) + z * (1.0 / 6 - z * (1.0 / 30 - z * (1.0 / 42)))) / x;
    return sign * total;
}
/* Giles' start, then two steps of Newton. */
SN_INLINE SN_REAL SN_(sn_erfinv)(SN_REAL v) {
    const double y = v, size = fabs(y);
    if (!(size < 1)) return size == 1 ? copysign(INFINITY, y) : NAN;
    double x;
    if (size <= 0.7) {
        const double z = y * y;
        x = y * ((((-0.140543331 * z + 0.914624893) * z - 1.645349621) * z + 0.886226899)) /
            ((((0.012229801 * z - 0.329097515) * z + 1.442710462) * z - 2.118377725) * z + 1);
    } else {
        const double z = sqrt(-log((1 - size) / 2));
        x = copysign((((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454) /
                     ((1.637067800 * z + 3.543889200) * z + 1), y);
    }
    for (int k = 0; k < 2; ++k) x -= (erf(x) - y) / (1.12837916709551257390 * exp(-x * x));
    return x;
}
#undef SN_REAL
#undef SN_
#undef SN_LIBM
