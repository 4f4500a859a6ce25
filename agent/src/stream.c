#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 64 * 1024, ROUNDS = 16 };

static void stream_ready(struct watch *watch, uint32_t events);

int stream_open(struct stream *stream, struct loop *loop, struct mux *mux, int in_fd, int out_fd)
{
    stream->loop = loop;
    stream->mux = mux;
    stream->away = false;
    int other = in_fd == out_fd ? fcntl(out_fd, F_DUPFD_CLOEXEC, 3) : out_fd; /* two things to wait for, two numbers */
    int in_flags = fcntl(in_fd, F_GETFL), out_flags = other < 0 ? -1 : fcntl(other, F_GETFL);
    if (in_flags < 0 || out_flags < 0 || fcntl(in_fd, F_SETFL, in_flags | O_NONBLOCK) < 0 ||
        fcntl(other, F_SETFL, out_flags | O_NONBLOCK) < 0)
        return errno;
    watch_init(&stream->in, in_fd, stream_ready, stream);
    watch_init(&stream->out, other, stream_ready, stream);
    return watch_for(loop, &stream->in, EPOLLIN) ? 0 : EINVAL;
}

/* Level-triggered, a stream that is hung up would wake us up for ever; edge-triggered, a change wakes us up once. */
static void stream_lost(struct stream *stream)
{
    watch_stop(stream->loop, &stream->out);
    watch_stop(stream->loop, &stream->in);
    if (stream->returns)
        watch_for(stream->loop, &stream->in, EPOLLIN | EPOLLET);
    if (!stream->away) {
        stream->away = true;
        stream->lost(stream);
    }
}

static void stream_read(struct stream *stream)
{
    uint8_t piece[PIECE];
    ssize_t length = read(stream->in.fd, piece, sizeof piece);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (length <= 0) {
        stream_lost(stream);
        return;
    }
    if (stream->away) {
        stream->away = false;
        watch_for(stream->loop, &stream->in, EPOLLIN);
    }
    mux_received(stream->mux, piece, (size_t)length);
}

void stream_flush(struct stream *stream)
{
    struct bytes *out = &stream->mux->out;
    for (int round = 0; round < ROUNDS && stream->out.fd >= 0 && !stream->away; round++) {
        mux_fill(stream->mux);
        if (!out->length) {
            watch_stop(stream->loop, &stream->out);
            return;
        }
        ssize_t sent = write(stream->out.fd, bytes_head(out), out->length);
        if (sent > 0) {
            bytes_take(out, (size_t)sent);
            continue;
        }
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            stream_lost(stream);
            return;
        }
        break;
    }
    if (stream->out.fd >= 0 && !stream->away)
        watch_for(stream->loop, &stream->out, EPOLLOUT);
}

static void stream_ready(struct watch *watch, uint32_t events)
{
    struct stream *stream = watch->owner;
    if (watch == &stream->out)
        stream_flush(stream);
    else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        stream_read(stream);
}

void stream_retry(struct stream *stream)
{
    if (stream->away && stream->returns && stream->in.fd >= 0)
        stream_read(stream);
}

void stream_close(struct stream *stream)
{
    watch_close(stream->loop, &stream->in);
    watch_close(stream->loop, &stream->out);
    stream->away = true;
}
