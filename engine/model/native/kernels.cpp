// The small operations of a decoder layer, and attention of single tokens over paged K/V, for a CPU.
//
// Each function exists for three pairs of types (see the end of the file):
//     P  what matrix products take and give       float        float       bfloat16
//     T  what is kept: hidden states, q, k, v     float        bfloat16    bfloat16
// Sums, exponentials and rotations are computed in float. A value is rounded to T wherever a model in T would round
// it, so that P = float with T = bfloat16 gives what bfloat16 throughout gives.
//
// Rows are independent of each other and shared out among OpenMP's threads: those of torch, whose library is linked.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

struct bf16 {
    uint16_t bits;
};

static inline float load(float value) { return value; }

static inline float load(bf16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

template <typename T>
static inline T store(float value);

template <>
inline float store<float>(float value) {
    return value;
}

template <>
inline bf16 store<bf16>(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits += 0x7fff + ((bits >> 16) & 1);  // to the nearest, ties to even
    return bf16{uint16_t(bits >> 16)};
}

template <typename T>
static inline float rounded(float value) {
    return load(store<T>(value));
}

// Below this many numbers, waking the other threads costs more than they save.
static const int64_t kParallelFrom = 16384;

// hidden [n, size] T, += delta [n, size] P unless that is null; normed [n, size] P
template <typename P, typename T>
static void add_rms_norm(T* hidden, const P* delta, const T* weight, P* normed, int64_t n, int64_t size, float eps) {
#pragma omp parallel for if (n * size >= kParallelFrom)
    for (int64_t row = 0; row < n; ++row) {
        T* own = hidden + row * size;
        P* out = normed + row * size;
        float sum = 0;
        if (delta != nullptr) {
            const P* other = delta + row * size;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < size; ++i) {
                float value = rounded<T>(load(own[i]) + rounded<T>(load(other[i])));
                own[i] = store<T>(value);
                sum += value * value;
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < size; ++i) {
                float value = load(own[i]);
                sum += value * value;
            }
        }
        float scale = 1.0f / std::sqrt(sum / size + eps);
#pragma omp simd
        for (int64_t i = 0; i < size; ++i)
            out[i] = store<P>(rounded<T>(rounded<T>(load(own[i]) * scale) * load(weight[i])));
    }
}

// gate_up [n, 2 * size] P -> gated [n, size] P: silu(gate) * up
template <typename P, typename T>
static void silu_mul(const P* gate_up, P* gated, int64_t n, int64_t size) {
#pragma omp parallel for if (n * size >= kParallelFrom)
    for (int64_t row = 0; row < n; ++row) {
        const P* gate = gate_up + row * 2 * size;
        const P* up = gate + size;
        P* out = gated + row * size;
#pragma omp simd
        for (int64_t i = 0; i < size; ++i) {
            float value = rounded<T>(load(gate[i]));
            // Bounded: an infinite divisor may become NaN, as -ffast-math divides by an estimate.
            value = rounded<T>(value / (1.0f + std::exp(std::min(-value, 80.0f))));
            out[i] = store<P>(rounded<T>(value * rounded<T>(load(up[i]))));
        }
    }
}

// qkv [n, (heads + 2 * kv_heads) * dim] P -> rotated [same] T; k and v also to their slots of the pool.
// cos, sin [n, dim] T, sin with the sign of the half it is multiplied with; pool [num_slots, kv_heads, dim] T
template <typename P, typename T>
static void rotate_store(const P* qkv, const T* cos, const T* sin, T* rotated, T* pool_keys, T* pool_values,
                         const int64_t* slots, int64_t n, int64_t heads, int64_t kv_heads, int64_t dim) {
    const int64_t width = (heads + 2 * kv_heads) * dim, half = dim / 2;
#pragma omp parallel for if (n * width >= kParallelFrom)
    for (int64_t row = 0; row < n; ++row) {
        const T *c = cos + row * dim, *s = sin + row * dim;
        for (int64_t head = 0; head < heads + kv_heads; ++head) {
            const P* in = qkv + row * width + head * dim;
            T* out = rotated + row * width + head * dim;
#pragma omp simd
            for (int64_t i = 0; i < half; ++i) {
                float low = rounded<T>(load(in[i])), high = rounded<T>(load(in[i + half]));
                out[i] = store<T>(rounded<T>(low * load(c[i])) + rounded<T>(high * load(s[i])));
                out[i + half] = store<T>(rounded<T>(high * load(c[i + half])) + rounded<T>(low * load(s[i + half])));
            }
        }
        const P* values = qkv + row * width + (heads + kv_heads) * dim;
        T* out = rotated + row * width + (heads + kv_heads) * dim;
#pragma omp simd
        for (int64_t i = 0; i < kv_heads * dim; ++i) out[i] = store<T>(load(values[i]));
        const int64_t to = slots[row] * kv_heads * dim;
        std::memcpy(pool_keys + to, rotated + row * width + heads * dim, kv_heads * dim * sizeof(T));
        std::memcpy(pool_values + to, out, kv_heads * dim * sizeof(T));
    }
}

// The loops of `attend` over one head's numbers: with a size that the compiler knows they become a few vector
// instructions; kSize 0 stands for any other size.
template <typename T, int kSize>
static inline void widen(const T* __restrict from, float* __restrict to, int64_t dim) {
    const int64_t size = kSize ? kSize : dim;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) to[i] = load(from[i]);
}

template <int kSize>
static inline float dot(const float* __restrict one, const float* __restrict other, int64_t dim) {
    const int64_t size = kSize ? kSize : dim;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; ++i) sum += one[i] * other[i];
    return sum;
}

template <int kSize>
static inline void add_scaled(float* __restrict sums, float weight, const float* __restrict values, int64_t dim) {
    const int64_t size = kSize ? kSize : dim;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) sums[i] += weight * values[i];
}

// One token of each of `batch` requests: softmax(q k * scale) v over the request's slots, heads h reading K/V h / groups.
// query [rows, ...] T, a row of `query_stride` numbers; slots [starts[batch]] in token order; out [batch, heads * dim] T
template <typename T, int kSize>
static void attend(const T* query, int64_t query_stride, const T* pool_keys, const T* pool_values, const int64_t* rows,
                   const int64_t* starts, const int64_t* slots, T* out, int64_t batch, int64_t heads, int64_t kv_heads,
                   int64_t dim, float scale) {
    const int64_t groups = heads / kv_heads, stride = kv_heads * dim;
#pragma omp parallel
    {
        std::vector<float> scores, sums(groups * dim), wide(groups * dim), one(dim);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < batch * kv_heads; ++task) {
            const int64_t request = task / kv_heads, kv_head = task % kv_heads;
            const int64_t* own = slots + starts[request];
            const int64_t length = starts[request + 1] - starts[request];
            const T* q = query + rows[request] * query_stride + kv_head * groups * dim;
            scores.resize(groups * length);
            for (int64_t i = 0; i < groups * dim; ++i) wide[i] = load(q[i]) * scale;
            for (int64_t token = 0; token < length; ++token) {
                widen<T, kSize>(pool_keys + own[token] * stride + kv_head * dim, one.data(), dim);
                for (int64_t group = 0; group < groups; ++group)
                    scores[group * length + token] = dot<kSize>(wide.data() + group * dim, one.data(), dim);
            }
            for (int64_t group = 0; group < groups; ++group) {
                float* row = scores.data() + group * length;
                float largest = row[0], sum = 0;
#pragma omp simd reduction(max : largest)
                for (int64_t i = 0; i < length; ++i) largest = row[i] > largest ? row[i] : largest;
#pragma omp simd reduction(+ : sum)
                for (int64_t i = 0; i < length; ++i) {
                    row[i] = std::exp(row[i] - largest);
                    sum += row[i];
                }
                const float inverse = 1.0f / sum;
#pragma omp simd
                for (int64_t i = 0; i < length; ++i) row[i] *= inverse;
            }
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (int64_t token = 0; token < length; ++token) {
                widen<T, kSize>(pool_values + own[token] * stride + kv_head * dim, one.data(), dim);
                for (int64_t group = 0; group < groups; ++group)
                    add_scaled<kSize>(sums.data() + group * dim, scores[group * length + token], one.data(), dim);
            }
            T* result = out + (request * heads + kv_head * groups) * dim;
            for (int64_t i = 0; i < groups * dim; ++i) result[i] = store<T>(sums[i]);
        }
    }
}

#define FOR_TYPES(NAME, P, T)                                                                                           \
    extern "C" void add_rms_norm_##NAME(void* hidden, const void* delta, const void* weight, void* normed, int64_t n,   \
                                        int64_t size, float eps) {                                                      \
        add_rms_norm((T*)hidden, (const P*)delta, (const T*)weight, (P*)normed, n, size, eps);                          \
    }                                                                                                                   \
    extern "C" void silu_mul_##NAME(const void* gate_up, void* gated, int64_t n, int64_t size) {                        \
        silu_mul<P, T>((const P*)gate_up, (P*)gated, n, size);                                                          \
    }                                                                                                                   \
    extern "C" void rotate_store_##NAME(const void* qkv, const void* cos, const void* sin, void* rotated, void* keys,   \
                                        void* values, const int64_t* slots, int64_t n, int64_t heads,                   \
                                        int64_t kv_heads, int64_t dim) {                                                \
        rotate_store((const P*)qkv, (const T*)cos, (const T*)sin, (T*)rotated, (T*)keys, (T*)values, slots, n, heads,   \
                     kv_heads, dim);                                                                                    \
    }

FOR_TYPES(float_float, float, float)
FOR_TYPES(float_bf16, float, bf16)
FOR_TYPES(bf16_bf16, bf16, bf16)

#define ATTEND(NAME, T)                                                                                                 \
    extern "C" void attend_##NAME(const void* query, int64_t query_stride, const void* keys, const void* values,        \
                                  const int64_t* rows, const int64_t* starts, const int64_t* slots, void* out,          \
                                  int64_t batch, int64_t heads, int64_t kv_heads, int64_t dim, float scale) {           \
        auto run = dim == 64 ? attend<T, 64> : dim == 128 ? attend<T, 128> : attend<T, 0>;                              \
        run((const T*)query, query_stride, (const T*)keys, (const T*)values, rows, starts, slots, (T*)out, batch,       \
            heads, kv_heads, dim, scale);                                                                               \
    }

ATTEND(float, float)
ATTEND(bf16, bf16)
