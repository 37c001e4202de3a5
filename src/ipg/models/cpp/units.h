// What is computed with: vectors of numbers in single precision, and units of four bytes (convnet.cpp).

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#if HALF
#include <immintrin.h>
#endif

static constexpr int WIDTHS[] = {WIDTHS_}, STRIDES[] = {STRIDES_};
static constexpr int LAYERS = sizeof(WIDTHS) / sizeof(int);

#if defined(__AVX512F__)
static constexpr int LANES = 16, SUMS = 28;  // of a vector; vectors of sums that registers hold
#elif defined(__AVX__)
static constexpr int LANES = 8, SUMS = 12;
#else
static constexpr int LANES = 4, SUMS = 12;
#endif

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

#if HALF
typedef uint16_t number;
typedef uint32_t unit;
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
static constexpr int PER_UNIT = 2;
typedef words units;
static inline floats add_product(floats sum, units x, unit y) {
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)_mm512_set1_epi32((int)y));
}
static inline floats load(const number* from) {
    halves x;
    memcpy(&x, from, sizeof x);
    return (floats)(__builtin_convertvector(x, words) << 16);
}
static inline void store(number* to, floats x) {
    __m256bh y = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &y, sizeof y);
}
static inline number narrow(float x) {  // to the nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (number)(x != x ? 0x7fc0 : bits);
}
#else
typedef float number;
typedef float unit;
static constexpr int PER_UNIT = 1;
typedef floats units;
static inline floats add_product(floats sum, units x, unit y) { return sum + x * y; }
static inline void store(number* to, floats x) { memcpy(to, &x, sizeof x); }
static inline number narrow(float x) { return x; }
#endif

static inline floats load(const float* from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}
static inline void keep(float* to, floats x) { memcpy(to, &x, sizeof x); }
static inline units load_units(const unit* from) {
    units x;
    memcpy(&x, from, sizeof x);
    return x;
}

// -- sizes: level 0 are the images, level i + 1 what layer i makes -----------------------------------------------------

static constexpr int side(int level, int first) {
    for (int i = 0; i < level; i++) first = (first - 1) / STRIDES[i] + 1;
    return first;
}

template <int level>
struct Maps {
    static constexpr int C = level == 0 ? (CHANNELS + PER_UNIT - 1) / PER_UNIT * PER_UNIT : WIDTHS[level ? level - 1 : 0];
    static constexpr int H = side(level, HEIGHT), W = side(level, WIDTH), AREA = H * W;
    static constexpr int ROW = (W + 2) * C;  // numbers, border included
    static constexpr int SIZE = (H + 2) * ROW;
    static constexpr int INSIDE = ROW + C;  // where the first pixel lies
};

template <int level>
struct Blocks {  // of the channels that are computed at once
    static constexpr int C = WIDTHS[level - 1];
    static constexpr int V = C % (2 * LANES) == 0 ? 2 : 1, STEP = V * LANES, COUNT = C / STEP;
    static_assert(C % LANES == 0 && C % GROUPS == 0, "");
};

static constexpr int parts(int length, int most) { return (length + most - 1) / most; }
