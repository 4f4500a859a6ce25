/* A queue of bytes that grows up to a limit. What does not fit marks it as failed, so that whoever puts many small
 * pieces in looks once, at the end. */
#ifndef BYTES_H
#define BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BYTES_MAX = 16 << 20 };

struct bytes {
    uint8_t *data;
    size_t start;
    size_t length;
    size_t room;
    bool failed;
};

/* Where the first byte is; NULL when empty. */
const uint8_t *bytes_head(const struct bytes *bytes);
/* Room for `size` more bytes, to be filled and then told by `bytes_grown`; NULL: there is none. */
uint8_t *bytes_reserve(struct bytes *bytes, size_t size);
void bytes_grown(struct bytes *bytes, size_t size);
void bytes_put(struct bytes *bytes, const void *data, size_t size);
/* Takes from the front; a large store that became empty is given back. */
void bytes_take(struct bytes *bytes, size_t size);
/* Takes back what was put after there were `length` bytes. */
void bytes_cut(struct bytes *bytes, size_t length);
void bytes_free(struct bytes *bytes);

#endif
