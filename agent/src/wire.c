#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_BYTES = 5, NUMBER_BYTES = 8 };

static uint32_t read_u32(const uint8_t *data)
{
    return (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | (uint32_t)data[3];
}

static void write_u32(uint8_t *data, uint32_t value)
{
    for (int at = 0; at < 4; at++)
        data[at] = (uint8_t)(value >> (24 - 8 * at));
}

void header_read(const uint8_t *data, struct header *header)
{
    header->length = read_u32(data);
    header->kind = data[4];
    header->channel = read_u32(data + 5);
}

void header_write(uint8_t *data, const struct header *header)
{
    write_u32(data, header->length);
    data[4] = header->kind;
    write_u32(data + 5, header->channel);
}

bool fields_check(struct span payload)
{
    size_t at = 0;
    while (at < payload.length) {
        if (payload.length - at < FIELD_BYTES)
            return false;
        uint32_t length = read_u32(payload.data + at + 1);
        at += FIELD_BYTES;
        if (length > payload.length - at)
            return false;
        at += length;
    }
    return true;
}

bool fields_next(struct span payload, size_t *at, uint8_t *key, struct span *value)
{
    if (payload.length - *at < FIELD_BYTES)
        return false;
    size_t length = read_u32(payload.data + *at + 1);
    if (length > payload.length - *at - FIELD_BYTES)
        return false;
    *key = payload.data[*at];
    *value = (struct span){payload.data + *at + FIELD_BYTES, length};
    *at += FIELD_BYTES + length;
    return true;
}

bool fields_find(struct span payload, uint8_t key, struct span *value)
{
    uint8_t each;
    for (size_t at = 0; fields_next(payload, &at, &each, value);)
        if (each == key)
            return true;
    *value = (struct span){NULL, 0};
    return false;
}

bool fields_text(struct span payload, uint8_t key, struct span *value)
{
    return !fields_find(payload, key, value) || value->length == 0 || !memchr(value->data, 0, value->length);
}

bool fields_number(struct span payload, uint8_t key, int64_t fallback, int64_t *value)
{
    struct span raw;
    *value = fallback;
    if (!fields_find(payload, key, &raw))
        return true;
    if (raw.length != NUMBER_BYTES)
        return false;
    uint64_t number = (uint64_t)read_u32(raw.data) << 32 | read_u32(raw.data + 4);
    if (number > INT64_MAX)
        return false;
    *value = (int64_t)number;
    return true;
}

size_t put_begin(struct bytes *to, uint8_t key)
{
    uint8_t head[FIELD_BYTES] = {key, 0, 0, 0, 0};
    size_t mark = to->length;
    bytes_put(to, head, sizeof head);
    return mark;
}

void put_end(struct bytes *to, size_t mark)
{
    if (!to->failed)
        write_u32(to->data + to->start + mark + 1, (uint32_t)(to->length - mark - FIELD_BYTES));
}

void put_bytes(struct bytes *to, uint8_t key, const void *data, size_t length)
{
    size_t mark = put_begin(to, key);
    bytes_put(to, data, length);
    put_end(to, mark);
}

void put_text(struct bytes *to, uint8_t key, const char *text)
{
    put_bytes(to, key, text, strlen(text));
}

void put_number(struct bytes *to, uint8_t key, int64_t value)
{
    uint8_t raw[NUMBER_BYTES];
    write_u32(raw, (uint32_t)((uint64_t)value >> 32));
    write_u32(raw + 4, (uint32_t)value);
    put_bytes(to, key, raw, sizeof raw);
}

void put_failure(struct bytes *to, int number, const char *why, struct span path)
{
    put_text(to, K_ERRNO, errno_name(number));
    put_text(to, K_MESSAGE, why ? why : strerror(number));
    put_bytes(to, K_PATH, path.data, path.length < TEXT_MAX ? path.length : TEXT_MAX);
}

#define NAMED(name)                                                                                                  \
    case name:                                                                                                       \
        return #name

const char *errno_name(int number)
{
    switch (number) {
        NAMED(EPERM);
        NAMED(ENOENT);
        NAMED(EINTR);
        NAMED(ENXIO);
        NAMED(E2BIG);
        NAMED(ENOEXEC);
        NAMED(EBADF);
        NAMED(EAGAIN);
        NAMED(ENOMEM);
        NAMED(EACCES);
        NAMED(EBUSY);
        NAMED(EEXIST);
        NAMED(EXDEV);
        NAMED(ENODEV);
        NAMED(ENOTDIR);
        NAMED(EISDIR);
        NAMED(EINVAL);
        NAMED(ENFILE);
        NAMED(EMFILE);
        NAMED(ENOTTY);
        NAMED(ETXTBSY);
        NAMED(EFBIG);
        NAMED(ENOSPC);
        NAMED(ESPIPE);
        NAMED(EROFS);
        NAMED(EMLINK);
        NAMED(EPIPE);
        NAMED(ENAMETOOLONG);
        NAMED(ENOSYS);
        NAMED(ENOTEMPTY);
        NAMED(ELOOP);
        NAMED(EOVERFLOW);
        NAMED(EOPNOTSUPP);
        NAMED(ESTALE);
        NAMED(EDQUOT);
        NAMED(ETIMEDOUT);
    default:
        return "EIO";
    }
}

struct span span_of(const char *text)
{
    return (struct span){(const uint8_t *)text, strlen(text)};
}

bool span_is(struct span span, const char *text)
{
    return span.length == strlen(text) && (span.length == 0 || memcmp(span.data, text, span.length) == 0);
}

char *span_copy(struct span span)
{
    char *copy = malloc(span.length + 1);
    if (!copy)
        return NULL;
    if (span.length)
        memcpy(copy, span.data, span.length);
    copy[span.length] = '\0';
    return copy;
}
