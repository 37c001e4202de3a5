// GroupNorm of what a convolution and ReLU have left of one image, and its way back through both.

#pragma once

#include "units.h"

template <int COUNT, class Term>
static inline floats sum_of(Term term) {  // four at a time, none of which waits for another
    constexpr int REST = COUNT % 4;
    floats sums[4] = {};
    for (int p = 0; p < COUNT - REST; p += 4)
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++) sums[q] += term(p + q);
    for (int q = 0; q < REST; q++) sums[q] += term(COUNT - REST + q);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <int i>
struct Norm {
    using Out = Maps<i + 1>;
    static constexpr int C = Out::C, EACH = C / GROUPS, ENTRIES = EACH * Out::AREA;

    static void measure(const number* x, float* means, float* inverses) {  // of every group
        float sums[C];
        for (int c = 0; c < C; c += LANES)
            keep(sums + c, sum_of<Out::AREA>([&](int p) { return load(x + p * C + c); }));
        float centres[C];
        for (int g = 0; g < GROUPS; g++) {
            float sum = 0;
            for (int c = g * EACH; c < (g + 1) * EACH; c++) sum += sums[c];
            means[g] = sum / ENTRIES;
            for (int c = g * EACH; c < (g + 1) * EACH; c++) centres[c] = means[g];
        }
        for (int c = 0; c < C; c += LANES) {
            floats centre = load(centres + c);
            keep(sums + c, sum_of<Out::AREA>([&](int p) {
                     floats d = load(x + p * C + c) - centre;
                     return d * d;
                 }));
        }
        for (int g = 0; g < GROUPS; g++) {
            float sum = 0;
            for (int c = g * EACH; c < (g + 1) * EACH; c++) sum += sums[c];
            inverses[g] = 1 / __builtin_sqrtf(sum / ENTRIES + EPS);
        }
    }

    static void lines(const float* stats, const float* weight, const float* bias, float* slopes, float* heights) {
        for (int c = 0; c < C; c++) {
            slopes[c] = stats[GROUPS + c / EACH] * weight[c];
            heights[c] = bias[c] - stats[c / EACH] * slopes[c];
        }
    }

    static void apply(const number* x, const float* stats, const float* weight, const float* bias, number* to) {
        float slopes[C], heights[C];
        lines(stats, weight, bias, slopes, heights);
        for (int c = 0; c < C; c += LANES) {
            floats slope = load(slopes + c), height = load(heights + c);
            for (int r = 0; r < Out::H; r++)
                for (int p = 0; p < Out::W; p++)
                    store(to + Out::INSIDE + r * Out::ROW + p * C + c, load(x + (r * Out::W + p) * C + c) * slope + height);
        }
    }

    static void pool(const number* x, const float* stats, const float* weight, const float* bias, float* to) {
        float slopes[C], heights[C];
        lines(stats, weight, bias, slopes, heights);
        for (int c = 0; c < C; c += LANES) {
            floats sum = sum_of<Out::AREA>([&](int p) { return load(x + p * C + c); });
            keep(to + c, sum * load(slopes + c) / (float)Out::AREA + load(heights + c));
        }
    }

    // from the gradient of its output to that of the convolution's; adds the gradients of weight, bias and the latter's
    static void back(const number* x, const float* dy, const float* stats, const float* weight, number* to, float* sums) {
        float centres[C], products[C], totals[C], slopes[C], bends[C], heights[C];
        for (int c = 0; c < C; c++) centres[c] = stats[c / EACH];
        for (int c = 0; c < C; c += LANES) {
            floats centre = load(centres + c);
            keep(products + c, sum_of<Out::AREA>([&](int p) {
                     return load(dy + p * C + c) * (load(x + p * C + c) - centre);
                 }));
            keep(totals + c, sum_of<Out::AREA>([&](int p) { return load(dy + p * C + c); }));
        }
        for (int g = 0; g < GROUPS; g++) {
            float inverse = stats[GROUPS + g], product = 0, total = 0;
            for (int c = g * EACH; c < (g + 1) * EACH; c++) {
                products[c] *= inverse;
                product += weight[c] * products[c];
                total += weight[c] * totals[c];
                sums[c] += products[c];
                sums[C + c] += totals[c];
            }
            for (int c = g * EACH; c < (g + 1) * EACH; c++) {
                slopes[c] = inverse * weight[c];
                bends[c] = -inverse * inverse * product / ENTRIES;
                heights[c] = -inverse * total / ENTRIES;
            }
        }
        for (int c = 0; c < C; c += LANES) {
            floats slope = load(slopes + c), bend = load(bends + c), height = load(heights + c);
            floats centre = load(centres + c), sum = load(sums + 2 * C + c);
            for (int r = 0; r < Out::H; r++)
                for (int p = 0; p < Out::W; p++) {
                    int at = (r * Out::W + p) * C + c;
                    floats value = load(x + at), d = load(dy + at) * slope + (value - centre) * bend + height;
                    d = value <= 0 ? floats{} : d;
                    sum += d;
                    store(to + Out::INSIDE + r * Out::ROW + p * C + c, d);
                }
            keep(sums + 2 * C + c, sum);
        }
    }
};
