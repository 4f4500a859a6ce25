/* SHA-256 (FIPS 180-4). */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };

struct sha256 {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
    size_t filled;
};

void sha256_begin(struct sha256 *hash);
void sha256_put(struct sha256 *hash, const void *data, size_t length);
void sha256_end(struct sha256 *hash, uint8_t digest[SHA256_BYTES]);

#endif
