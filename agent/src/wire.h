/* Frames, fields and numbers of the protocol: docs/design/formats/agent-protocol.md. A test compares the enums with
 * the host's, so that each constant stands on a line of its own kind: NAME = number. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"

enum protocol {
    VERSION = 1,
    HEADER_BYTES = 9,
    FRAME_MAX = 1 << 20,
    CHUNK = 64 * 1024,
    FILE_CHUNK = 256 * 1024,
    STDIN_WINDOW = 256 * 1024,
    OUT_HIGH = 1 << 20,    /* a connection with more than this to send is not given more */
    CHANNELS_MAX = 4096,
    TEXT_MAX = 4096,       /* of a path or a reason in an answer, which may repeat a request of a whole frame */
    BATCH_MAX = 256 * 1024 /* of entries, before the last one */
};

/* To the agent below 0x80, from it above. */
enum frame {
    PING = 1,
    EXEC = 2,
    STDIN = 3,
    STDIN_EOF = 4,
    SIGNAL = 5,
    RESIZE = 6,
    CREDIT = 7,
    CLOSE = 8,
    READ = 16,
    WRITE = 17,
    DATA = 18,
    END = 19,
    LIST = 20,
    STAT = 21,
    REMOVE = 22,
    STATS = 23,
    WATCH = 24,
    IDENTIFY = 25,
    QUIESCE = 26,
    CONFIGURE = 27,
    HELLO = 128,
    PONG = 129,
    STARTED = 130,
    STDOUT = 131,
    STDERR = 132,
    EXIT = 133,
    STDIN_CREDIT = 134,
    FILE_HEAD = 144,
    FILE_DATA = 145,
    FILE_FAILED = 146,
    ENTRIES = 147,
    DONE = 148,
    ERROR = 149,
    WATCHING = 150,
    CHANGES = 151,
    IDENTITY = 152
};

enum key {
    K_VERSION = 1,
    K_FEATURES = 2,
    K_ARGV = 3,
    K_ENV = 4,
    K_CWD = 5,
    K_USER = 6,
    K_TIMEOUT_MS = 7,
    K_OUTPUT_MAX = 8,
    K_FLAGS = 9,
    K_ROWS = 10,
    K_COLUMNS = 11,
    K_CREDIT = 12,
    K_PID = 13,
    K_CODE = 14,
    K_SIGNAL = 15,
    K_MESSAGE = 16,
    K_CPU_US = 17,
    K_RSS_BYTES = 18,
    K_STDOUT_BYTES = 19,
    K_STDERR_BYTES = 20,
    K_DURATION_US = 21,
    K_PATH = 32,
    K_MODE = 33,
    K_OFFSET = 34,
    K_LENGTH = 35,
    K_INDEX = 36,
    K_SIZE = 37,
    K_MTIME_NS = 38,
    K_KIND = 39,
    K_SHA256 = 40,
    K_ENTRY = 41,
    K_ENTRIES_MAX = 42,
    K_ERRNO = 43,
    K_COUNT = 44,
    K_MEMORY_BYTES = 48,
    K_MEMORY_TOTAL = 49,
    K_OOM_KILLS = 50,
    K_HOSTNAME = 64,
    K_MACHINE_ID = 65,
    K_BOOT_ID = 66,
    K_SEED = 67,
    K_TIME_NS = 68,
    K_TOKEN = 69,
    K_INTERFACE = 70,
    K_RANDOM = 71,
    K_STEP = 72
};

/* Of EXEC, of EXIT and of file requests. */
enum flag {
    F_STDIN = 1,
    F_PTY = 2,
    F_DETACH = 4,
    F_TIMED_OUT = 1,
    F_KILLED = 2,
    F_NOFOLLOW = 1,
    F_RECURSIVE = 2,
    F_DIGESTS = 4,
    F_WHOLE = 8
};

/* A piece of somebody else's memory. */
struct span {
    const uint8_t *data;
    size_t length;
};

struct header {
    uint32_t length;
    uint8_t kind;
    uint32_t channel;
};

void header_read(const uint8_t *data, struct header *header);
void header_write(uint8_t *data, const struct header *header);

/* Fields of a payload. `fields_check` first: whether all of them end where the payload does. */
bool fields_check(struct span payload);
bool fields_next(struct span payload, size_t *at, uint8_t *key, struct span *value);
/* The first value of a key; false: there is none. */
bool fields_find(struct span payload, uint8_t key, struct span *value);
/* The first value as a name: false where it holds a zero byte. Absent: an empty one. */
bool fields_text(struct span payload, uint8_t key, struct span *value);
/* The first value as a number from 0 on: false where it is something else. Absent: `fallback`. */
bool fields_number(struct span payload, uint8_t key, int64_t fallback, int64_t *value);

void put_bytes(struct bytes *to, uint8_t key, const void *data, size_t length);
void put_text(struct bytes *to, uint8_t key, const char *text);
void put_number(struct bytes *to, uint8_t key, int64_t value);
/* ERRNO, MESSAGE and PATH of an ERROR; `why` NULL: what the number is usually called. */
void put_failure(struct bytes *to, int number, const char *why, struct span path);
/* A field whose value is put together by what follows, up to `put_end`. */
size_t put_begin(struct bytes *to, uint8_t key);
void put_end(struct bytes *to, size_t mark);

const char *errno_name(int number);
struct span span_of(const char *text);
bool span_is(struct span span, const char *text);
/* A copy that ends with a zero byte; NULL: no memory. */
char *span_copy(struct span span);

#endif
