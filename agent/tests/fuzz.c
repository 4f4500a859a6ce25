/* The decoders by themselves, fed with anything.
 *
 * fuzz random SEED COUNT     that many inputs, the same for the same seed; by hand, let it run for hours
 * fuzz file PATH…            inputs that were kept
 * fuzz serve                 requests on stdin, answers on stdout: for comparing with the host's decoder
 *
 * `LLVMFuzzerTestOneInput` is what libFuzzer calls (clang -fsanitize=fuzzer -DLIBFUZZER). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "files.h"
#include "json.h"

enum { INPUT_MAX = 8192, LINK_ID = 7 };

static void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static void try_fields(struct span input)
{
    uint8_t key;
    struct span value;
    size_t at = 0, count = 0;
    while (fields_next(input, &at, &key, &value)) {
        int64_t number;
        require(value.data + value.length <= input.data + input.length, "a field ends in its payload");
        if (fields_number(input, key, -1, &number))
            require(number >= 0, "no number is negative");
        fields_text(input, key, &value);
        count++;
    }
    require(fields_check(input) == (at == input.length), "checked and read alike");
    require(count <= input.length, "no more fields than bytes");
}

static void try_configuration(struct span input)
{
    struct config config;
    config_init(&config);
    const char *why = config_read(&config, (const char *)input.data, input.length);
    require(why == NULL || (config.env == NULL && config.workdir == NULL), "a refused configuration changes nothing");
    config_free(&config);
    struct json json = {.at = (const char *)input.data, .end = (const char *)input.data + input.length};
    json_skip(&json);
    require(json.at <= json.end, "JSON ends where its text does");
}

static void try_stuffing(struct span input)
{
    struct bytes encoded = {0};
    size_t half = input.length / 2;
    cobs_put(&encoded, input.data, half, input.data ? input.data + half : NULL, input.length - half);
    require(!encoded.failed && memchr(encoded.data, 0, encoded.length) == encoded.data + encoded.length - 1,
            "one zero, at the end");
    size_t length = encoded.length - 1;
    require(cobs_decode(encoded.data, &length) && length == input.length &&
                (!length || !memcmp(encoded.data, input.data, length)),
            "what was encoded comes back");
    bytes_free(&encoded);
    uint8_t *copy = malloc(input.length + 1);
    length = input.length;
    if (copy && length) {
        memcpy(copy, input.data, length);
        cobs_decode(copy, &length);
        require(length <= input.length, "nothing grows");
    }
    free(copy);
}

static void *opened(struct link *link)
{
    return link->id % 5 ? link->mux : NULL;
}

static void received(struct link *link, const uint8_t *data, size_t length)
{
    if (length && data[0] % 3 == 0)
        mux_taken(link, length);
}

static size_t wanted(struct link *link, uint8_t *data, size_t size)
{
    size_t length = link->id % 100;
    length = length < size ? length : size;
    memset(data, 'x', length);
    return link->send_room > MUX_WINDOW - 1024 ? length : 0;
}

static void closed(struct link *link)
{
    (void)link;
}

static const struct mux_hooks hooks = {opened, received, wanted, closed};

/* Bytes as they are, and then as packets of the right generation, of which a few are sound. */
static void try_mux(struct span input, bool host)
{
    struct mux *mux = calloc(1, sizeof *mux);
    require(mux != NULL, "memory");
    mux_init(mux, &hooks, NULL, host);
    require(!host || mux_restart(mux), "randomness");
    mux_received(mux, input.data, input.length);
    mux_fill(mux);
    bytes_cut(&mux->out, 0);
    uint64_t generation = host ? mux->generation : 42;
    for (size_t at = 0; at + 4 < input.length;) {
        uint8_t head[MUX_HEADER] = {0};
        size_t length = input.data[at + 1] < input.length - at ? input.data[at + 1] : input.length - at;
        for (int byte = 0; byte < 8; byte++)
            head[byte] = (uint8_t)(generation >> (56 - 8 * byte));
        head[8] = at == 0 ? (host ? MUX_READY : MUX_RESET) : (uint8_t)(1 + input.data[at] % 8);
        head[12] = input.data[at + 2] % 8;
        head[16] = (uint8_t)length;
        struct bytes packet = {0};
        cobs_put(&packet, head, sizeof head, input.data + at, length);
        mux_received(mux, bytes_head(&packet), packet.length);
        bytes_free(&packet);
        if (host && input.data[at + 3] % 4 == 0)
            mux_open(mux, mux);
        mux_fill(mux);
        require(mux->out.length < (size_t)4 * MUX_HIGH, "little waits to be sent");
        require(mux->count <= MUX_LINKS, "not too many links");
        bytes_cut(&mux->out, 0);
        at += length / 2 + 1;
        generation = mux->generation ? mux->generation : generation;
    }
    mux_free(mux);
    free(mux);
}

static struct agent *agent;
static struct mux agent_mux;

/* Frames for an agent that starts nothing and changes nothing. */
static void try_requests(struct span input)
{
    static const uint8_t kinds[] = {PING,  STDIN, STDIN_EOF, SIGNAL, RESIZE, CREDIT, CLOSE,     READ,
                                    LIST,  STAT,  STATS,     WATCH,  DATA,   END,    CONFIGURE, HELLO};
    struct link link = {.mux = &agent_mux, .id = LINK_ID, .send_room = MUX_WINDOW};
    struct connection *connection = connection_new(agent, -1, &link);
    require(connection != NULL, "memory");
    link.owner = connection;
    for (size_t at = 0; at + 3 < input.length && connection->open;) {
        size_t length = input.data[at + 1] < input.length - at - 3 ? input.data[at + 1] : input.length - at - 3;
        uint8_t frame[HEADER_BYTES + 255];
        struct header header = {.length = (uint32_t)length,
                                .kind = kinds[input.data[at] % sizeof kinds],
                                .channel = input.data[at + 2] % 4};
        header_write(frame, &header);
        memcpy(frame + HEADER_BYTES, input.data + at + 3, length);
        for (size_t sent = 0; sent < HEADER_BYTES + length;) {
            size_t piece = 1 + input.data[at] % 16;
            piece = piece < HEADER_BYTES + length - sent ? piece : HEADER_BYTES + length - sent;
            connection_take(connection, frame + sent, piece);
            sent += piece;
        }
        jobs_step(agent);
        require(connection->outbox.length < (size_t)8 * OUT_HIGH, "little waits to be sent");
        bytes_cut(&connection->outbox, 0);
        at += length + 3;
    }
    connection_close(connection, NULL);
    jobs_step(agent);
    connection_bury(agent);
    commands_bury(agent);
    require(!agent->jobs && !agent->connections, "nothing is left");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct span input = {data, size};
    if (!agent) {
        agent = calloc(1, sizeof *agent);
        require(agent != NULL && loop_open(&agent->loop) == 0, "a loop");
        config_init(&agent->config);
        agent->configured = true;
    }
    try_fields(input);
    try_configuration(input);
    try_stuffing(input);
    try_mux(input, true);
    try_mux(input, false);
    try_requests(input);
    return 0;
}

#ifndef LIBFUZZER
static uint64_t state;

static uint64_t chance(void)
{
    state ^= state << 13; /* xorshift64 (Marsaglia, 2003) */
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Noise, or something that is nearly right: fields, or JSON, some of its bytes then changed. */
static size_t make_input(uint8_t *data)
{
    static const char json[] = "{\"listen_fd\": 3, \"env\": {\"A\": \"b\\u00e9\\ud83d\\ude00\"}, \"idle_timeout_s\": 1e3,"
                               " \"x\": [1, {\"y\": null}], \"workdir\": \"/w\", \"init\": false}";
    size_t length = chance() % (chance() % 8 ? 300 : INPUT_MAX);
    if (chance() % 3 == 0) {
        length = sizeof json - 1;
        memcpy(data, json, length);
    } else {
        for (size_t at = 0; at < length; at++)
            data[at] = chance() % 4 ? (uint8_t)(chance() % 80) : (uint8_t)chance();
        for (size_t at = 3; chance() % 2 && at + 14 < length; at += 14)
            memcpy(data + at, "\x21\0\0\0\x04.abc\x09\0\0\0", 14);
    }
    for (uint64_t changes = chance() % 5; length && changes; changes--)
        data[chance() % length] = (uint8_t)chance();
    return length;
}

static int run_random(uint64_t seed, long count)
{
    uint8_t buffer[INPUT_MAX];
    state = seed * 2654435761u + 1;
    for (long at = 0; at < count; at++) {
        size_t length = make_input(buffer);
        uint8_t *exact = malloc(length ? length : 1); /* its end is where the sanitizer looks */
        require(exact != NULL, "memory");
        memcpy(exact, buffer, length);
        LLVMFuzzerTestOneInput(exact, length);
        free(exact);
    }
    printf("%ld inputs\n", count);
    return 0;
}

static int run_file(const char *path)
{
    uint8_t buffer[INPUT_MAX];
    FILE *file = fopen(path, "rb");
    if (!file)
        return 66;
    size_t length = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    return LLVMFuzzerTestOneInput(buffer, length);
}

/* A payload, length before it; the answer is a line: `bad`, or `key:hex` of every field, in order. */
static int serve(void)
{
    uint8_t head[4], *payload = malloc(1 << 16);
    while (payload && fread(head, 1, 4, stdin) == 4) {
        size_t length = (size_t)head[2] << 8 | head[3], at = 0;
        struct span value, input = {payload, length};
        uint8_t key;
        if (fread(payload, 1, length, stdin) != length)
            break;
        if (!fields_check(input)) {
            printf("bad");
        } else {
            while (fields_next(input, &at, &key, &value)) {
                int64_t number;
                struct span text;
                printf("%d%s%s:", key, fields_number(input, key, 0, &number) ? "n" : "",
                       fields_text(input, key, &text) ? "t" : "");
                for (size_t byte = 0; byte < value.length; byte++)
                    printf("%02x", value.data[byte]);
                printf(" ");
            }
        }
        printf("\n");
        fflush(stdout);
    }
    free(payload);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "random"))
        return run_random(strtoull(argv[2], NULL, 10), strtol(argv[3], NULL, 10));
    if (argc > 2 && !strcmp(argv[1], "file")) {
        for (int at = 2; at < argc; at++)
            run_file(argv[at]);
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "serve"))
        return serve();
    fprintf(stderr, "usage: fuzz random SEED COUNT | fuzz file PATH… | fuzz serve\n");
    return 64;
}
#endif
