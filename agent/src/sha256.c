#include "sha256.h"

#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t turned(uint32_t value, int by)
{
    return value >> by | value << (32 - by);
}

static void compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], v[8];
    for (size_t at = 0; at < 16; at++)
        w[at] = (uint32_t)block[4 * at] << 24 | (uint32_t)block[4 * at + 1] << 16 | (uint32_t)block[4 * at + 2] << 8 |
                (uint32_t)block[4 * at + 3];
    for (size_t at = 16; at < 64; at++) {
        uint32_t s0 = turned(w[at - 15], 7) ^ turned(w[at - 15], 18) ^ w[at - 15] >> 3;
        uint32_t s1 = turned(w[at - 2], 17) ^ turned(w[at - 2], 19) ^ w[at - 2] >> 10;
        w[at] = w[at - 16] + s0 + w[at - 7] + s1;
    }
    memcpy(v, state, sizeof v);
    for (size_t at = 0; at < 64; at++) {
        uint32_t s1 = turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t one = v[7] + s1 + choice + constants[at] + w[at];
        uint32_t s0 = turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + s0 + majority;
    }
    for (size_t at = 0; at < 8; at++)
        state[at] += v[at];
}

void sha256_begin(struct sha256 *hash)
{
    static const uint32_t start[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    }; /* of the square roots of the first 8 primes */
    *hash = (struct sha256){0};
    memcpy(hash->state, start, sizeof start);
}

void sha256_put(struct sha256 *hash, const void *data, size_t length)
{
    const uint8_t *from = data;
    hash->length += length;
    while (length) {
        if (hash->filled == 0 && length >= sizeof hash->block) {
            compress(hash->state, from);
            from += sizeof hash->block;
            length -= sizeof hash->block;
            continue;
        }
        size_t size = sizeof hash->block - hash->filled < length ? sizeof hash->block - hash->filled : length;
        memcpy(hash->block + hash->filled, from, size);
        hash->filled += size;
        from += size;
        length -= size;
        if (hash->filled == sizeof hash->block) {
            compress(hash->state, hash->block);
            hash->filled = 0;
        }
    }
}

void sha256_end(struct sha256 *hash, uint8_t digest[SHA256_BYTES])
{
    uint64_t bits = hash->length * 8;
    uint8_t tail[8];
    sha256_put(hash, "\x80", 1);
    while (hash->filled != 56)
        sha256_put(hash, "", 1);
    for (int at = 0; at < 8; at++)
        tail[at] = (uint8_t)(bits >> (56 - 8 * at));
    sha256_put(hash, tail, sizeof tail);
    for (size_t at = 0; at < SHA256_BYTES; at++)
        digest[at] = (uint8_t)(hash->state[at / 4] >> (24 - 8 * (at % 4)));
}
