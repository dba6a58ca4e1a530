/* Numbers of 16 bits: bfloat16, the upper half of a float, and float16, as IEEE 754 has it.
 *
 * Code computes in float. sn_round_* gives the nearest number of 16 bits, ties to even, as a float; sn_store_*
 * takes such a float to its 16 bits, sn_load_* back. All are branch-free, so that loops of them are vectorised.
 */
#ifndef SN_HALF_H
#define SN_HALF_H

SN_INLINE float sn_load_bf16(uint16_t x) { return sn_from_bits_f32((uint32_t)x << 16); }
SN_INLINE uint16_t sn_store_bf16(float x) { return (uint16_t)(sn_bits_f32(x) >> 16); }
SN_INLINE float sn_round_bf16(float x) {
    const uint32_t u = sn_bits_f32(x);
    const uint32_t near = u + 0x7fffu + ((u >> 16) & 1u), quiet = u | 0x400000u;
    return sn_from_bits_f32((x == x ? near : quiet) & 0xffff0000u);
}

SN_INLINE float sn_round_f16(float x) {
    const uint32_t u = sn_bits_f32(x), sign = u & 0x80000000u, size = u & 0x7fffffffu;
    const float a = sn_from_bits_f32(size);
    const float tiny = (a + 0.5f) - 0.5f; /* below 2^-14 numbers are 2^-24 apart, as floats from 0.5 to 1 are */
    uint32_t near = (size + 0xfffu + ((size >> 13) & 1u)) & 0xffffe000u;
    near = a < 0x1p-14f ? sn_bits_f32(tiny) : near;
    near = a >= 65520.0f ? 0x7f800000u : near;
    near = x == x ? near : 0x7fc00000u;
    return sn_from_bits_f32(near | sign);
}
SN_INLINE uint16_t sn_store_f16(float x) {
    const uint32_t u = sn_bits_f32(x), size = u & 0x7fffffffu;
    const float a = sn_from_bits_f32(size);
    const uint32_t tiny = (uint32_t)(int32_t)((a < 1.0f ? a : 0.0f) * 0x1p24f);
    uint32_t bits = (size - 0x38000000u) >> 13;
    bits = a < 0x1p-14f ? tiny : bits;
    bits = a > 65504.0f ? 0x7c00u : bits;
    bits = x == x ? bits : 0x7e00u;
    return (uint16_t)(bits | ((u & 0x80000000u) >> 16));
}
SN_INLINE float sn_load_f16(uint16_t x) {
    const uint32_t size = x & 0x7fffu;
    const float tiny = (float)(int32_t)size * 0x1p-24f;
    uint32_t bits = (size << 13) + (size >= 0x7c00u ? 0x70000000u : 0x38000000u);
    bits = size < 0x400u ? sn_bits_f32(tiny) : bits;
    return sn_from_bits_f32(bits | ((uint32_t)(x & 0x8000u) << 16));
}
#endif
