// A convolution of one image, back to its input, and the gradients of its weights.

#pragma once

#include "units.h"

struct Run {  // of units that lie beside each other, in the maps and, vectors of them, in the weights
    int from, weights, length;
};

template <int P, int V, int STEP, class Take>
static inline void positions(const unit* maps, const unit* weights, const Run* runs, int count, Take take) {
    floats sums[P][V] = {};
    for (int i = 0; i < count; i++) {
        const unit *x = maps + runs[i].from, *w = weights + (size_t)runs[i].weights * V * LANES;
        for (int k = 0; k < runs[i].length; k++, w += V * LANES) {
            units factors[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) factors[v] = load_units(w + v * LANES);
#pragma GCC unroll 32
            for (int p = 0; p < P; p++) {
                unit y = x[p * STEP + k];
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) sums[p][v] = add_product(sums[p][v], factors[v], y);
            }
        }
    }
#pragma GCC unroll 32
    for (int p = 0; p < P; p++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) take(p, v, sums[p][v]);
}

template <int LENGTH, int V, int STEP, class Take>
static inline void row(const unit* maps, const unit* weights, const Run* runs, int count, Take take) {
    // a row of positions, in parts of the same length but for the last
    if constexpr (LENGTH > 0) {
        constexpr int P = parts(LENGTH, parts(LENGTH, SUMS / V)), FULL = LENGTH / P, REST = LENGTH % P;
        for (int i = 0; i < FULL; i++)
            positions<P, V, STEP>(maps + i * P * STEP, weights, runs, count,
                                  [&](int p, int v, floats x) { take(i * P + p, v, x); });
        if constexpr (REST > 0)
            positions<REST, V, STEP>(maps + FULL * P * STEP, weights, runs, count,
                                     [&](int p, int v, floats x) { take(FULL * P + p, v, x); });
    }
}

template <int i>
static void convolve(const number* maps, const unit* weights, const float* bias, number* rectified) {
    using In = Maps<i>;
    using Out = Maps<i + 1>;
    using B = Blocks<i + 1>;
    constexpr int PIXEL = In::C / PER_UNIT, ROW = In::ROW / PER_UNIT, S = STRIDES[i];
    const Run runs[] = {{0, 0, 3 * PIXEL}, {ROW, 3 * PIXEL, 3 * PIXEL}, {2 * ROW, 6 * PIXEL, 3 * PIXEL}};
    for (int b = 0; b < B::COUNT; b++) {
        const unit* w = weights + (size_t)b * 9 * PIXEL * B::STEP;
        floats shift[B::V];
        for (int v = 0; v < B::V; v++) shift[v] = load(bias + b * B::STEP + v * LANES);
        for (int r = 0; r < Out::H; r++) {
            number* to = rectified + r * Out::W * Out::C + b * B::STEP;
            int first = r == 0, last = r * S + 2 > In::H ? 2 : 3;  // without the border
            row<Out::W, B::V, S * PIXEL>(
                (const unit*)maps + r * S * ROW, w, runs + first, last - first, [&](int p, int v, floats x) {
                    x += shift[v];
                    store(to + p * Out::C + v * LANES, x < 0 ? floats{} : x);  // what is not a number stays so
                });
        }
    }
}

template <int i, int S, int ODD>
static void convolve_back(const unit* gradient, const unit* weights, float* to) {
    // of layer i, from its output (inside a border) to its input (without): with stride 2 to every other column
    using In = Maps<i + 1>;
    using Out = Maps<i>;
    using B = Blocks<i>;
    constexpr int PIXEL = In::C / PER_UNIT, ROW = In::ROW / PER_UNIT;
    for (int r = 0; r < Out::H; r++) {
        Run runs[9];
        int count = 0;
        for (int k = 0; k < 3; k++) {  // taps, turned round
            int from = S == 1 ? r + k : r / 2 + k / 2 + 1;
            if (from < 1 || from > In::H) continue;  // on the border
            if (S == 1)
                runs[count++] = {from * ROW, 3 * k * PIXEL, 3 * PIXEL};
            else if ((r + k) % 2)
                for (int l = 0; l < 3; l++)
                    if ((ODD + l) % 2) runs[count++] = {from * ROW + (l / 2 + 1) * PIXEL, (3 * k + l) * PIXEL, PIXEL};
        }
        for (int b = 0; b < B::COUNT; b++) {
            float* out = to + (r * Out::W + ODD) * Out::C + b * B::STEP;
            row<(Out::W - ODD + S - 1) / S, B::V, PIXEL>(
                gradient, weights + (size_t)b * 9 * PIXEL * B::STEP, runs, count,
                [&](int p, int v, floats x) { keep(out + p * S * Out::C + v * LANES, x); });
        }
    }
}

template <int i, int J>
static inline void outer(const unit* maps, const unit* gradient, int k, float* to) {
    // the gradients of J rows of weights of layer i, in row k of the taps
    using In = Maps<i>;
    using Out = Maps<i + 1>;
    constexpr int V = Blocks<i + 1>::V, S = STRIDES[i];
    floats sums[J][V];
#pragma GCC unroll 32
    for (int j = 0; j < J; j++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[j][v] = load(to + (j * V + v) * LANES);
    for (int r = k == 0; r < Out::H && r * S + k <= In::H; r++) {  // without the border
        const unit *x = maps + (r * S + k) * In::ROW, *y = gradient + r * Out::ROW;
        for (int c = 0; c < Out::W; c++, x += S * In::C, y += Out::C) {
            units factors[V];
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) factors[v] = load_units(y + v * LANES);
#pragma GCC unroll 32
            for (int j = 0; j < J; j++)
#pragma GCC unroll 4
                for (int v = 0; v < V; v++) sums[j][v] = add_product(sums[j][v], factors[v], x[j]);
        }
    }
#pragma GCC unroll 32
    for (int j = 0; j < J; j++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) keep(to + (j * V + v) * LANES, sums[j][v]);
}

template <int i>
static void weigh(const unit* maps, const unit* gradient, float* to) {
    // add the gradients of the weights of layer i: (block, row of taps, column of taps and input channel, channel)
    using In = Maps<i>;
    using Out = Maps<i + 1>;
    using B = Blocks<i + 1>;
    constexpr int LENGTH = 3 * In::C, J = parts(LENGTH, parts(LENGTH, SUMS / B::V)), REST = LENGTH % J;
    for (int b = 0; b < B::COUNT; b++)
        for (int k = 0; k < 3; k++) {
            const unit* y = gradient + Out::INSIDE + b * B::STEP;
            float* sums = to + (size_t)(3 * b + k) * LENGTH * B::STEP;
            int j = 0;
            for (; j + J <= LENGTH; j += J) outer<i, J>(maps + j, y, k, sums + j * B::STEP);
            if constexpr (REST > 0) outer<i, REST>(maps + j, y, k, sums + j * B::STEP);
        }
}

// -- weights, packed as they are read ----------------------------------------------------------------------------------

template <int OUT, int IN, int STEP>
static void pack(const float* weights, int real, int out_stride, int in_stride, bool turned, number* to) {
    for (int b = 0; b < OUT / STEP; b++)
        for (int k = 0; k < 9; k++)
            for (int u = 0; u < IN / PER_UNIT; u++)
                for (int o = 0; o < STEP; o++)
                    for (int h = 0; h < PER_UNIT; h++) {
                        int in = u * PER_UNIT + h, out = b * STEP + o;
                        *to++ = in < real ? narrow(weights[out * out_stride + in * in_stride + (turned ? 8 - k : k)]) : 0;
                    }
}

template <int i>
static void unpack(const float* sums, float* to) {
    using B = Blocks<i + 1>;
    constexpr int C = Maps<i>::C, REAL = i ? C : CHANNELS;
    for (int out = 0; out < B::C; out++)
        for (int in = 0; in < REAL; in++)
            for (int k = 0; k < 9; k++)
                *to++ = sums[((size_t)(9 * (out / B::STEP) + k) * C + in) * B::STEP + out % B::STEP];
}
