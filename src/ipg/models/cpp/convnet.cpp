// The body of a ConvNet, forward and backward, on a CPU: 3x3 convolution, ReLU, GroupNorm, as often as there are
// widths, then the mean over positions. Compiled for one network, size of images and precision (ipg/models/native.py).
//
// An image goes through all layers while it lies in the cache. Its maps are rows of pixels, all channels of a pixel
// beside each other, inside a border of zeros. What is multiplied are *units* of four bytes: a float, or two numbers in
// bf16 whose products are added in single precision: two channels of a pixel as maps are convolved, the same channel of
// two images as gradients of weights are summed. The order of sums depends on the number of threads and nothing else.

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "convolution.h"
#include "group_norm.h"
#include "units.h"

class Memory {  // zeros, freed together
    void* all_[16 * LAYERS];
    int count_ = 0;

public:
    template <class T>
    T* fresh(size_t entries) {
        size_t bytes = (entries * sizeof(T) + 127) / 64 * 64;  // one vector may be read beyond the end
        void* found = aligned_alloc(64, bytes);
        memset(found, 0, bytes);
        return (T*)(all_[count_++] = found);
    }
    ~Memory() {
        while (count_) free(all_[--count_]);
    }
};

static constexpr int saved_before(int layer) {  // numbers that an image leaves of the layers before
    int sum = 0;
    for (int i = 0; i < layer; i++) sum += WIDTHS[i] * side(i + 1, HEIGHT) * side(i + 1, WIDTH);
    return sum;
}
static constexpr int SAVED = saved_before(LAYERS), STATS = 2 * GROUPS;

static void place(const float* __restrict image, number* __restrict to) {
    using Out = Maps<0>;
    for (int r = 0; r < Out::H; r++)
        for (int p = 0; p < Out::W; p++)
            for (int c = 0; c < Out::C; c++)
                to[Out::INSIDE + r * Out::ROW + p * Out::C + c] =
                    c < CHANNELS ? narrow(image[c * Out::AREA + r * Out::W + p]) : 0;
}

struct Packed {
    number *there[LAYERS], *back[LAYERS];

    template <int i>
    void fill(const float* const* parameters, Memory& memory) {
        if constexpr (i < LAYERS) {
            constexpr int OUT = Maps<i + 1>::C, IN = Maps<i>::C, REAL = i ? IN : CHANNELS;
            there[i] = memory.fresh<number>(9 * OUT * IN);
            pack<OUT, IN, Blocks<i + 1>::STEP>(parameters[4 * i], REAL, 9 * REAL, 9, false, there[i]);
            fill<i + 1>(parameters, memory);
        }
    }
    template <int i>
    void fill_back(const float* const* parameters, Memory& memory) {  // the first layer's are not needed
        if constexpr (i < LAYERS) {
            constexpr int OUT = Maps<i>::C, IN = Maps<i + 1>::C;
            back[i] = memory.fresh<number>(9 * OUT * IN);
            pack<OUT, IN, Blocks<i>::STEP>(parameters[4 * i], IN, 9, 9 * OUT, true, back[i]);
            fill_back<i + 1>(parameters, memory);
        }
    }
};

struct Scratch {  // of a thread
    Memory memory;
    number *maps[LAYERS][PER_UNIT], *gradients[LAYERS][PER_UNIT];
    unit *map_units[LAYERS], *gradient_units[LAYERS];
    float *flowing[LAYERS][PER_UNIT], *weights[LAYERS], *channels[LAYERS];

    template <int i>
    void fill(bool back) {
        if constexpr (i < LAYERS) {
            for (int n = 0; n < PER_UNIT; n++) {
                maps[i][n] = memory.fresh<number>(Maps<i>::SIZE);
                if (!back) continue;
                gradients[i][n] = memory.fresh<number>(Maps<i + 1>::SIZE);
                flowing[i][n] = memory.fresh<float>(Maps<i + 1>::AREA * Maps<i + 1>::C);
            }
            if (back) {
                map_units[i] = PER_UNIT == 1 ? (unit*)maps[i][0] : memory.fresh<unit>(Maps<i>::SIZE);
                gradient_units[i] = PER_UNIT == 1 ? (unit*)gradients[i][0] : memory.fresh<unit>(Maps<i + 1>::SIZE);
                weights[i] = memory.fresh<float>(9 * Maps<i>::C * Maps<i + 1>::C);
                channels[i] = memory.fresh<float>(3 * Maps<i + 1>::C);
            }
            fill<i + 1>(back);
        }
    }
};

template <int i>
static void through(const float* const* parameters, const Packed& packed, Scratch& own, number* saved, float* stats,
                    float* features) {
    if constexpr (i < LAYERS) {
        const float *bias = parameters[4 * i + 1], *weight = parameters[4 * i + 2], *shift = parameters[4 * i + 3];
        number* x = saved + saved_before(i);
        convolve<i>(own.maps[i][0], (const unit*)packed.there[i], bias, x);
        Norm<i>::measure(x, stats, stats + GROUPS);
        if constexpr (i + 1 < LAYERS)
            Norm<i>::apply(x, stats, weight, shift, own.maps[i + 1][0]);
        else
            Norm<i>::pool(x, stats, weight, shift, features);
        through<i + 1>(parameters, packed, own, saved, stats + STATS, features);
    }
}

#if HALF
static void interleave(const number* const* from, int count, unit* to) {
    for (int i = 0; i < count; i++) to[i] = (unit)from[0][i] | (unit)from[1][i] << 16;
}
#else
static void interleave(const number* const*, int, unit*) {}  // they are one
#endif

template <int i>
static void through_back(const float* const* parameters, const Packed& packed, Scratch& own, const float* const* images,
                         const number* const* saved, const float* const* stats, int count) {
    const float* weight = parameters[4 * i + 2];
    for (int n = 0; n < PER_UNIT; n++) {
        if (n >= count) {  // of the last two images there may be but one
            memset(own.gradients[i][n], 0, sizeof(number) * Maps<i + 1>::SIZE);
            continue;
        }
        const number* x = saved[n] + saved_before(i);
        Norm<i>::back(x, own.flowing[i][n], stats[n] + i * STATS, weight, own.gradients[i][n], own.channels[i]);
        if constexpr (i == 0)
            place(images[n], own.maps[i][n]);
        else
            Norm<i - 1>::apply(saved[n] + saved_before(i - 1), stats[n] + (i - 1) * STATS, parameters[4 * i - 2],
                               parameters[4 * i - 1], own.maps[i][n]);
    }
    interleave(own.maps[i], Maps<i>::SIZE, own.map_units[i]);
    interleave(own.gradients[i], Maps<i + 1>::SIZE, own.gradient_units[i]);
    weigh<i>(own.map_units[i], own.gradient_units[i], own.weights[i]);
    if constexpr (i > 0) {
        for (int n = 0; n < count; n++) {
            const unit *from = (const unit*)own.gradients[i][n], *weights = (const unit*)packed.back[i];
            convolve_back<i, STRIDES[i], 0>(from, weights, own.flowing[i - 1][n]);
            if constexpr (STRIDES[i] == 2) convolve_back<i, 2, 1>(from, weights, own.flowing[i - 1][n]);
        }
        through_back<i - 1>(parameters, packed, own, images, saved, stats, count);
    }
}

template <int i>
static void collect(Scratch* own, int threads, float* const* gradients) {
    if constexpr (i < LAYERS) {
        constexpr int WEIGHTS = 9 * Maps<i>::C * Maps<i + 1>::C, C = Maps<i + 1>::C;
        for (int t = 1; t < threads; t++) {
            for (int n = 0; n < WEIGHTS; n++) own[0].weights[i][n] += own[t].weights[i][n];
            for (int n = 0; n < 3 * C; n++) own[0].channels[i][n] += own[t].channels[i][n];
        }
        unpack<i>(own[0].weights[i], gradients[4 * i]);
        memcpy(gradients[4 * i + 1], own[0].channels[i] + 2 * C, C * sizeof(float));
        memcpy(gradients[4 * i + 2], own[0].channels[i], C * sizeof(float));
        memcpy(gradients[4 * i + 3], own[0].channels[i] + C, C * sizeof(float));
        collect<i + 1>(own, threads, gradients);
    }
}

static constexpr int PIXELS = CHANNELS * HEIGHT * WIDTH, FEATURES = WIDTHS[LAYERS - 1];

extern "C" {

int saved_numbers() { return SAVED; }
int saved_statistics() { return LAYERS * STATS; }

void forward(const float* images, const float* const* parameters, number* saved, float* stats, float* features,
             int64_t count, int threads, int keep) {
    // of images that are not to be kept each thread has one row of `saved` and of `stats`
    Memory memory;
    Packed packed;
    packed.fill<0>(parameters, memory);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        Scratch own;
        own.fill<0>(false);
        for (int64_t n = count * t / threads; n < count * (t + 1) / threads; n++) {
            int64_t at = keep ? n : t;
            place(images + n * PIXELS, own.maps[0][0]);
            through<0>(parameters, packed, own, saved + at * SAVED, stats + at * LAYERS * STATS, features + n * FEATURES);
        }
    }
}

void backward(const float* images, const float* const* parameters, const number* saved, const float* stats,
              const float* flowing, float* const* gradients, int64_t count, int threads) {
    Memory memory;
    Packed packed;
    packed.fill_back<1>(parameters, memory);
    Scratch* own = new Scratch[threads];
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; t++) {
        own[t].fill<0>(true);
        for (int64_t n = count * t / threads, end = count * (t + 1) / threads; n < end; n += PER_UNIT) {
            const float *image[PER_UNIT], *stat[PER_UNIT];
            const number* kept[PER_UNIT];
            int now = n + PER_UNIT <= end ? PER_UNIT : (int)(end - n);
            for (int m = 0; m < now; m++) {
                image[m] = images + (n + m) * PIXELS;
                kept[m] = saved + (n + m) * SAVED;
                stat[m] = stats + (n + m) * LAYERS * STATS;
                const float* d = flowing + (n + m) * FEATURES;
                using Last = Maps<LAYERS>;
                for (int p = 0; p < Last::AREA; p++)
                    for (int c = 0; c < FEATURES; c++) own[t].flowing[LAYERS - 1][m][p * FEATURES + c] = d[c] / Last::AREA;
            }
            through_back<LAYERS - 1>(parameters, packed, own[t], image, kept, stat, now);
        }
    }
    collect<0>(own, threads, gradients);
    delete[] own;
}
}
