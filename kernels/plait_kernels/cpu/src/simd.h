// Vectors of floats as the compiler's own vector types: one source for AVX-512, AVX2, NEON and whatever comes.
//
// Sums over lanes always fold the same way (lane i with i + LANES/2, and so on), so a result does not depend on how
// many others were computed beside it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace plait {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr int REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4;
constexpr int REGISTERS = 32;
#else
constexpr int LANES = 4;
constexpr int REGISTERS = 16;
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

struct bf16 {
    uint16_t bits;
};

template <class To, class From>
inline To cast_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

inline vf splat(float x) { return x - vf{}; }
inline vi splat_int(int32_t x) { return x - vi{}; }

// a * b + c, rounded once where the machine can. Written out, because a compiler left to contract by itself does so in
// one place and not in another, and results that should be the same to the bit are not. (-ffp-contract=off.)
inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return vf(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FMA__)
    return vf(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__aarch64__)
    return vf(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
    return a * b + c;
#endif
}

// Loads and stores of LANES values, widened to fp32 and rounded to nearest even.

inline vf load(const float* p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline vf load(const bf16* p) {
    vh h;
    std::memcpy(&h, p, sizeof h);
    return cast_bits<vf>(__builtin_convertvector(h, vu) << 16);
}

inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

inline void store(bf16* p, vf v) {
    vu u = cast_bits<vu>(v);
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu quiet_nan = vu{} + 0x7fc0u;
    vh h = __builtin_convertvector(v == v ? rounded : quiet_nan, vh);
    std::memcpy(p, &h, sizeof h);
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return cast_bits<float>(uint32_t(x.bits) << 16); }

inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) {
    uint32_t u = cast_bits<uint32_t>(x);
    p->bits = x == x ? uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16) : uint16_t(0x7fc0u);
}

// The first n < LANES values; the rest of the vector is zero, the rest of memory untouched.

template <class T>
inline vf load_part(const T* p, int n) {
    T whole[LANES] = {};
    for (int i = 0; i < n; i++) whole[i] = p[i];
    return load(whole);
}

template <class T>
inline void store_part(T* p, vf v, int n) {
    T whole[LANES];
    store(whole, v);
    for (int i = 0; i < n; i++) p[i] = whole[i];
}

// Calls f(offset, lanes) over n values; lanes is LANES but for the tail.
template <class F>
inline void each_vector(int64_t n, F f) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) f(i, LANES);
    if (i < n) f(i, int(n - i));
}

template <class T>
inline vf load_some(const T* p, int n) {
    return n == LANES ? load(p) : load_part(p, n);
}

template <class T>
inline void store_some(T* p, vf v, int n) {
    if (n == LANES)
        store(p, v);
    else
        store_part(p, v, n);
}

// Sums over lanes. `fold4` folds four vectors down to LANES / 4 lanes each, side by side.

inline float sum(vf v) {
    float x[LANES];
    store(x, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

#if defined(__AVX512F__)
inline vf fold2(vf a, vf b) {
    vf low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    vf high = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    return low + high;
}
inline void sum4(float* out, vf a, vf b, vf c, vf d) {
    vf ab = fold2(a, b), cd = fold2(c, d);
    vf low = __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    vf high = __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    vf v = low + high;
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    v = __builtin_shufflevector(v, v, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    std::memcpy(out, &v, 16);
}
#elif defined(__AVX__)
inline void sum4(float* out, vf a, vf b, vf c, vf d) {
    vf ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
            __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
    vf cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11) +
            __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
    vf v = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);  // a a c c b b d d
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
    out[0] = v[0], out[1] = v[4], out[2] = v[2], out[3] = v[6];
}
#else
inline void sum4(float* out, vf a, vf b, vf c, vf d) { out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d); }
#endif

// Adds up n accumulators into out[n].
template <int N>
inline void sum_all(float* out, const vf* v) {
    int i = 0;
    for (; i + 4 <= N; i += 4) sum4(out + i, v[i], v[i + 1], v[i + 2], v[i + 3]);
    constexpr int REST = N % 4;
    if (REST) {
        float rest[4];
        sum4(rest, v[N - REST], REST > 1 ? v[N - REST + 1] : vf{}, REST > 2 ? v[N - REST + 2] : vf{}, vf{});
        std::memcpy(out + N - REST, rest, REST * sizeof(float));
    }
}

// Values of a and b in turn: the first half of each, and the second.
#if defined(__AVX512F__)
inline vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
inline vf zip_high(vf a, vf b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX__)
inline vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline vf zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
inline vf zip_low(vf a, vf b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline vf zip_high(vf a, vf b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
#endif

// LANES vectors as rows of a square become its columns: zipping the halves log2(LANES) times.
inline void transpose(vf (&rows)[LANES]) {
    for (int round = 1; round < LANES; round *= 2) {
        vf next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = zip_low(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = zip_high(rows[i], rows[i + LANES / 2]);
        }
        std::memcpy(rows, next, sizeof next);
    }
}

inline float largest(vf v) {
    float x[LANES];
    store(x, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }

// e^x to about 1 unit in the last place; 0 below -87.3 (denormals are not made), saturates near 2.4e38 above.
inline vf exp(vf x) {
    vf clamped = x > 88.0f ? splat(88.0f) : x;
    clamped = clamped < -87.3f ? splat(-87.3f) : clamped;
    const float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves a whole number in the low bits
    vf shifted = fma(clamped, splat(1.44269504088896341f), splat(round_magic));
    vf n = shifted - round_magic;
    vf r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));  // ln 2 in two parts
    vf p = splat(1.9875691500e-4f);  // minimax polynomial of the Cephes library
    for (float coefficient : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, splat(coefficient));
    p = fma(p * r, r, r) + 1.0f;
    vi power = (cast_bits<vi>(shifted) << 23) + (127 << 23);
    vf result = p * cast_bits<vf>(power);
    result = x < -87.3f ? vf{} : result;
    return x == x ? result : x;
}

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }
inline vf silu(vf x) { return x * sigmoid(x); }
inline vf tanh(vf x) {
    vf bounded = min(max(x, splat(-15.0f)), splat(15.0f));
    vf e = exp(bounded * 2.0f);
    vf t = (e - 1.0f) / (e + 1.0f);
    // Near zero the difference above cancels; the series does not.
    vf x2 = x * x;
    vf series = x * (1.0f + x2 * (-0.333333333f + x2 * (0.133333333f - x2 * 0.0539682540f)));
    vf small = x2 < 0.01f ? series : t;
    return x == x ? small : x;
}
inline vf gelu_tanh(vf x) { return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }

inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

}  // namespace plait
