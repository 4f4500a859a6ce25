/* A byte stream of two descriptors that a mux speaks over; both ends of it. */
#ifndef STREAM_H
#define STREAM_H

#include "loop.h"
#include "mux.h"

struct stream {
    struct loop *loop;
    struct mux *mux;
    struct watch in;
    struct watch out;
    bool away;                                 /* the other end is gone, for now */
    bool returns;                              /* another end may come on the same descriptors (a device, a FIFO) */
    void (*lost)(struct stream *stream);       /* once, when the other end went away */
};

/* Takes over the descriptors. 0, or a number of errno. */
int stream_open(struct stream *stream, struct loop *loop, struct mux *mux, int in_fd, int out_fd);
/* Sends what there is to send. */
void stream_flush(struct stream *stream);
/* Looks whether the other end is back, for kinds that do not wake up by themselves. */
void stream_retry(struct stream *stream);
void stream_close(struct stream *stream);

#endif
