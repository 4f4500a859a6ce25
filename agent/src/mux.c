#include "mux.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { PACKET_MAX = MUX_HEADER + MUX_DATA, ENCODED_MAX = PACKET_MAX + PACKET_MAX / 254 + 2, CREDIT_STEP = MUX_WINDOW / 4 };

static void write_number(uint8_t *to, uint64_t value, int size)
{
    for (int at = 0; at < size; at++)
        to[at] = (uint8_t)(value >> (8 * (size - 1 - at)));
}

static uint64_t read_number(const uint8_t *from, int size)
{
    uint64_t value = 0;
    for (int at = 0; at < size; at++)
        value = value << 8 | from[at];
    return value;
}

/* A run of at most 254 bytes without a zero: its length and one, then the bytes. */
struct stuffing {
    struct bytes *to;
    uint8_t run[255];
    size_t length;
};

static void stuff_out(struct stuffing *state, uint8_t code)
{
    state->run[0] = code;
    bytes_put(state->to, state->run, state->length + 1);
    state->length = 0;
}

static void stuff(struct stuffing *state, const uint8_t *data, size_t length)
{
    for (size_t at = 0; at < length;) {
        if (data[at] == 0) {
            stuff_out(state, (uint8_t)(state->length + 1));
            at++;
            continue;
        }
        size_t size = length - at < 254 - state->length ? length - at : 254 - state->length;
        const uint8_t *zero = memchr(data + at, 0, size);
        if (zero)
            size = (size_t)(zero - (data + at));
        memcpy(state->run + 1 + state->length, data + at, size);
        state->length += size;
        at += size;
        if (state->length == 254)
            stuff_out(state, 255);
    }
}

void cobs_put(struct bytes *to, const uint8_t *head, size_t head_length, const uint8_t *data, size_t length)
{
    struct stuffing state = {.to = to};
    stuff(&state, head, head_length);
    stuff(&state, data, length);
    stuff_out(&state, (uint8_t)(state.length + 1));
    bytes_put(to, "", 1);
}

bool cobs_decode(uint8_t *data, size_t *length)
{
    size_t from = 0, to = 0;
    while (from < *length) {
        uint8_t code = data[from++];
        if (code == 0 || (size_t)code - 1 > *length - from)
            return false;
        memmove(data + to, data + from, (size_t)code - 1);
        to += (size_t)code - 1;
        from += (size_t)code - 1;
        if (code != 255 && from < *length)
            data[to++] = 0;
    }
    *length = to;
    return true;
}

void mux_init(struct mux *mux, const struct mux_hooks *hooks, void *owner, bool host)
{
    *mux = (struct mux){.hooks = hooks, .owner = owner, .host = host, .boot = !host};
}

static void link_forget(struct link *link)
{
    struct mux *mux = link->mux;
    for (struct link **at = &mux->links; *at; at = &(*at)->next)
        if (*at == link) {
            *at = link->next;
            break;
        }
    if (mux->turn == link)
        mux->turn = link->next;
    mux->count--;
    free(link);
}

void mux_drop_links(struct mux *mux)
{
    while (mux->links) {
        struct link *link = mux->links;
        if (link->owner)
            mux->hooks->closed(link);
        link_forget(link);
    }
    bytes_free(&mux->out);
}

bool mux_restart(struct mux *mux)
{
    mux->in_step = false;
    mux_drop_links(mux);
    uint64_t fresh = 0;
    while (fresh == 0 || fresh == mux->generation)
        if (getrandom(&fresh, sizeof fresh, 0) != sizeof fresh)
            return false;
    mux->generation = fresh;
    mux->reset = true;
    return true;
}

void mux_free(struct mux *mux)
{
    mux_drop_links(mux);
    bytes_free(&mux->in);
}

static struct link *link_add(struct mux *mux, uint32_t id, void *owner)
{
    struct link *link = mux->count < MUX_LINKS ? calloc(1, sizeof *link) : NULL;
    if (!link)
        return NULL;
    *link = (struct link){.next = mux->links, .mux = mux, .owner = owner, .id = id, .send_room = MUX_WINDOW};
    mux->links = link;
    mux->count++;
    return link;
}

static struct link *link_find(struct mux *mux, uint32_t id)
{
    struct link *link = mux->links;
    while (link && link->id != id)
        link = link->next;
    return link;
}

struct link *mux_open(struct mux *mux, void *owner)
{
    if (!mux->in_step)
        return NULL;
    struct link *link = link_add(mux, mux->last_id + 1, owner);
    if (link) {
        mux->last_id++;
        link->opening = true;
    }
    return link;
}

void mux_taken(struct link *link, size_t length)
{
    link->credit += length;
}

void mux_close(struct link *link)
{
    link->owner = NULL;
    link->closing = true;
}

/* What a side may not do closes the link, nothing else. */
static void link_break(struct link *link)
{
    if (link->owner)
        link->mux->hooks->closed(link);
    mux_close(link);
}

static void take_open(struct mux *mux, uint32_t id)
{
    if (mux->host || link_find(mux, id))
        return;
    struct link *link = link_add(mux, id, NULL);
    if (!link)
        return; /* the host does not open more than it may */
    link->owner = mux->hooks->opened(link);
    if (!link->owner)
        link->closing = true;
}

static void take_data(struct link *link, const uint8_t *data, size_t length)
{
    if (!link->owner)
        return;
    link->received += length;
    if (link->received > MUX_WINDOW)
        link_break(link);
    else
        link->mux->hooks->received(link, data, length);
}

static void take_credit(struct link *link, const uint8_t *data, size_t length)
{
    uint64_t more = length == 4 ? read_number(data, 4) : UINT64_MAX;
    if (more > MUX_WINDOW - link->send_room)
        link_break(link);
    else
        link->send_room += (size_t)more;
}

static void take_close(struct link *link)
{
    link->closed_there = true;
    if (link->owner)
        link->mux->hooks->closed(link);
    link->owner = NULL;
    if (link->told_close)
        link_forget(link);
    else
        link->closing = true;
}

static void take_reset(struct mux *mux, uint64_t generation)
{
    if (mux->host || generation == 0)
        return;
    mux->ready = true;
    mux->boot = false;
    if (generation == mux->generation && mux->in_step)
        return; /* said again */
    mux->in_step = false;
    mux_drop_links(mux);
    mux->generation = generation;
    mux->in_step = true;
}

static void take_packet(struct mux *mux, const uint8_t *packet, size_t size)
{
    if (size < MUX_HEADER || size - MUX_HEADER != read_number(packet + 13, 4))
        return; /* the rest of one that was cut off */
    uint64_t generation = read_number(packet, 8);
    uint8_t type = packet[8];
    const uint8_t *data = packet + MUX_HEADER;
    size_t length = size - MUX_HEADER;
    if (type == MUX_RESET) {
        take_reset(mux, generation);
        return;
    }
    if (type == MUX_BOOT) {
        if (mux->host)
            mux_restart(mux); /* without randomness: it stays out of step, and the next one tries again */
        return;
    }
    if (generation != mux->generation || generation == 0)
        return; /* of before */
    if (type == MUX_READY) {
        if (mux->host && !mux->in_step) {
            mux->in_step = true;
            mux->reset = false;
        }
        return;
    }
    if (!mux->in_step)
        return;
    uint32_t id = (uint32_t)read_number(packet + 9, 4);
    struct link *link = link_find(mux, id);
    if (type == MUX_OPEN)
        take_open(mux, id);
    else if (link && type == MUX_BYTES)
        take_data(link, data, length);
    else if (link && type == MUX_CREDIT)
        take_credit(link, data, length);
    else if (link && type == MUX_CLOSE)
        take_close(link);
}

void mux_received(struct mux *mux, const uint8_t *data, size_t length)
{
    while (length) {
        const uint8_t *zero = memchr(data, 0, length);
        size_t size = zero ? (size_t)(zero - data) : length;
        if (!mux->skipping && mux->in.length + size <= ENCODED_MAX)
            bytes_put(&mux->in, data, size);
        else
            mux->skipping = true;
        if (mux->in.failed) {
            bytes_free(&mux->in);
            mux->skipping = true;
        }
        if (!zero)
            return;
        size_t packet = mux->in.length;
        uint8_t *start = packet ? mux->in.data + mux->in.start : NULL;
        if (!mux->skipping && start && cobs_decode(start, &packet))
            take_packet(mux, start, packet);
        mux->skipping = false;
        bytes_cut(&mux->in, 0);
        data += size + 1;
        length -= size + 1;
    }
}

static void put_packet(struct mux *mux, uint8_t type, uint32_t id, const uint8_t *data, size_t length)
{
    uint8_t head[MUX_HEADER];
    write_number(head, type == MUX_BOOT ? 0 : mux->generation, 8);
    head[8] = type;
    write_number(head + 9, id, 4);
    write_number(head + 13, length, 4);
    cobs_put(&mux->out, head, sizeof head, data, length);
}

/* What a link has to say; whether that was something. It may be gone afterwards. */
static bool link_fill(struct link *link)
{
    struct mux *mux = link->mux;
    bool said = link->opening;
    if (link->opening)
        put_packet(mux, MUX_OPEN, link->id, NULL, 0);
    link->opening = false;
    if (link->closing && !link->told_close) {
        put_packet(mux, MUX_CLOSE, link->id, NULL, 0);
        link->told_close = true;
        if (link->closed_there)
            link_forget(link);
        return true;
    }
    if (!link->owner)
        return said;
    if (link->credit >= CREDIT_STEP) {
        uint8_t amount[4];
        write_number(amount, link->credit, 4);
        put_packet(mux, MUX_CREDIT, link->id, amount, sizeof amount);
        link->received -= link->credit;
        link->credit = 0;
        said = true;
    }
    size_t room = link->send_room < MUX_DATA ? link->send_room : MUX_DATA;
    size_t size = room ? mux->hooks->wanted(link, mux->piece, room) : 0;
    if (size && link->owner) {
        put_packet(mux, MUX_BYTES, link->id, mux->piece, size);
        link->send_room -= size;
        said = true;
    }
    return said || (link->closing && !link->told_close); /* by what its owner found out just now */
}

void mux_fill(struct mux *mux)
{
    if (mux->out.failed)
        bytes_free(&mux->out); /* the other side drops what was cut off */
    /* A zero first: it ends whatever was left unfinished by another end of this stream, or by this one. */
    if (mux->boot) {
        bytes_put(&mux->out, "", 1);
        put_packet(mux, MUX_BOOT, 0, NULL, 0);
    }
    if (mux->reset) {
        bytes_put(&mux->out, "", 1);
        put_packet(mux, MUX_RESET, 0, NULL, 0);
    }
    if (mux->ready) {
        bytes_put(&mux->out, "", 1);
        put_packet(mux, MUX_READY, 0, NULL, 0);
    }
    mux->boot = mux->reset = mux->ready = false;
    if (!mux->in_step)
        return;
    size_t quiet = 0;
    while (mux->links && quiet < mux->count && mux->out.length < MUX_HIGH && !mux->out.failed) {
        struct link *link = mux->turn ? mux->turn : mux->links;
        mux->turn = link->next;
        if (link_fill(link))
            quiet = 0;
        else
            quiet++;
    }
}
