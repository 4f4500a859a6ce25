#include "bytes.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT = 64 * 1024 };

const uint8_t *bytes_head(const struct bytes *bytes)
{
    return bytes->data ? bytes->data + bytes->start : NULL;
}

uint8_t *bytes_reserve(struct bytes *bytes, size_t size)
{
    if (bytes->failed || size > BYTES_MAX - bytes->length) {
        bytes->failed = true;
        return NULL;
    }
    size_t needed = bytes->length + size;
    if (bytes->start + needed > bytes->room && needed <= bytes->room) {
        memmove(bytes->data, bytes->data + bytes->start, bytes->length);
        bytes->start = 0;
    } else if (bytes->start + needed > bytes->room) {
        size_t room = bytes->room ? bytes->room : 256;
        while (room < needed)
            room *= 2;
        uint8_t *data = malloc(room);
        if (!data) {
            bytes->failed = true;
            return NULL;
        }
        if (bytes->length)
            memcpy(data, bytes->data + bytes->start, bytes->length);
        free(bytes->data);
        bytes->data = data;
        bytes->start = 0;
        bytes->room = room;
    }
    return bytes->data + bytes->start + bytes->length;
}

void bytes_grown(struct bytes *bytes, size_t size)
{
    bytes->length += size;
}

void bytes_put(struct bytes *bytes, const void *data, size_t size)
{
    uint8_t *to = bytes_reserve(bytes, size);
    if (to && size) {
        memcpy(to, data, size);
        bytes->length += size;
    }
}

void bytes_take(struct bytes *bytes, size_t size)
{
    bytes->start += size;
    bytes->length -= size;
    if (bytes->length)
        return;
    bytes->start = 0;
    if (bytes->room > KEPT) {
        free(bytes->data);
        bytes->data = NULL;
        bytes->room = 0;
    }
}

void bytes_cut(struct bytes *bytes, size_t length)
{
    if (length < bytes->length)
        bytes->length = length;
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}
