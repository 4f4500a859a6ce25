/* Several connections over one byte stream: docs/design/formats/agent-stream.md. Both ends use this file. */
#ifndef MUX_H
#define MUX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"

enum mux_numbers {
    MUX_VERSION = 1,
    MUX_HEADER = 17,          /* generation, type, link, length */
    MUX_DATA = 32 * 1024,     /* in one packet */
    MUX_WINDOW = 256 * 1024,  /* of a link, in one direction */
    MUX_LINKS = 256,
    MUX_HIGH = 128 * 1024     /* no more packets are made while so much waits */
};

enum mux_packet {
    MUX_RESET = 1,
    MUX_READY = 2,
    MUX_BOOT = 3,
    MUX_OPEN = 4,
    MUX_BYTES = 5,
    MUX_CREDIT = 6,
    MUX_CLOSE = 7
};

struct mux;

struct link {
    struct link *next;
    struct mux *mux;
    void *owner;
    uint32_t id;
    size_t send_room;      /* what the other side still takes */
    size_t received;       /* of the other side's window, not yet given back */
    size_t credit;         /* to give back */
    bool opening;          /* to be told */
    bool closing;          /* to be told */
    bool closed_there;
    bool told_close;
};

struct mux_hooks {
    /* A new link from the other side; NULL owner: refused. */
    void *(*opened)(struct link *link);
    void (*received)(struct link *link, const uint8_t *data, size_t length);
    /* Up to `size` bytes to send; how many. */
    size_t (*wanted)(struct link *link, uint8_t *data, size_t size);
    /* No more will come, nor be taken. The link's memory is the mux's. */
    void (*closed)(struct link *link);
};

struct mux {
    const struct mux_hooks *hooks;
    void *owner;
    bool host;
    bool in_step;
    uint64_t generation;
    struct bytes in;
    struct bytes out;
    bool skipping; /* the packet that is coming in is too long: up to its end */
    bool boot;     /* to be told */
    bool reset;
    bool ready;
    struct link *links;
    size_t count;
    uint32_t last_id;
    struct link *turn; /* who sends next */
    uint8_t piece[MUX_DATA];
};

void mux_init(struct mux *mux, const struct mux_hooks *hooks, void *owner, bool host);
/* Host: closes all links and begins a new generation. False: no randomness. */
bool mux_restart(struct mux *mux);
void mux_received(struct mux *mux, const uint8_t *data, size_t length);
/* Puts into `mux->out` what may be sent now. */
void mux_fill(struct mux *mux);
/* Host: a new link; NULL: too many, or not in step. */
struct link *mux_open(struct mux *mux, void *owner);
/* `length` received bytes were taken: the other side may send as many more. */
void mux_taken(struct link *link, size_t length);
/* This side is done with the link; no hook is called for it any more. */
void mux_close(struct link *link);
void mux_drop_links(struct mux *mux);
void mux_free(struct mux *mux);

/* Consistent Overhead Byte Stuffing (Cheshire and Baker, 1997): no zero byte within a packet. */
void cobs_put(struct bytes *to, const uint8_t *head, size_t head_length, const uint8_t *data, size_t length);
/* In place; false: not such an encoding. */
bool cobs_decode(uint8_t *data, size_t *length);

#endif
