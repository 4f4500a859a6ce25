/* One stream from the host: frames in, frames out, and the channels that live on it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"
#include "files.h"

enum { INBOX_MAX = HEADER_BYTES + FRAME_MAX + CHUNK };

static void connection_ready(struct watch *watch, uint32_t events);

struct connection *connection_new(struct agent *agent, int fd, struct link *link)
{
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        return NULL;
    connection->agent = agent;
    connection->link = link;
    connection->open = true;
    watch_init(&connection->watch, fd, connection_ready, connection);
    if (fd >= 0 && !watch_for(&agent->loop, &connection->watch, EPOLLIN)) {
        free(connection);
        return NULL;
    }
    connection->next = agent->connections;
    agent->connections = connection;
    return connection;
}

bool connection_congested(const struct connection *connection)
{
    return connection->outbox.length > OUT_HIGH;
}

struct bytes *send_begin(struct connection *connection, uint8_t kind, uint32_t channel)
{
    uint8_t raw[HEADER_BYTES];
    header_write(raw, &(struct header){.kind = kind, .channel = channel});
    connection->frame_at = connection->outbox.length;
    if (connection->open)
        bytes_put(&connection->outbox, raw, sizeof raw);
    else
        bytes_free(&connection->outbox);
    return &connection->outbox;
}

void send_end(struct connection *connection)
{
    struct bytes *outbox = &connection->outbox;
    connection->dirty = true;
    if (!connection->open || outbox->failed || outbox->length < connection->frame_at + HEADER_BYTES)
        return;
    struct header header;
    uint8_t *raw = outbox->data + outbox->start + connection->frame_at;
    header_read(raw, &header);
    header.length = (uint32_t)(outbox->length - connection->frame_at - HEADER_BYTES);
    header_write(raw, &header);
}

void send_frame(struct connection *connection, uint8_t kind, uint32_t channel, struct span payload)
{
    struct bytes *out = send_begin(connection, kind, channel);
    bytes_put(out, payload.data, payload.length);
    send_end(connection);
}

void send_failure(struct connection *connection, uint32_t channel, int number, const char *why, struct span path)
{
    put_failure(send_begin(connection, ERROR, channel), number, why, path);
    send_end(connection);
}

/* The part of the inbox that is whole frames. */
static void connection_dispatch(struct connection *connection)
{
    while (connection->open && !connection->closing && connection->inbox.length >= HEADER_BYTES) {
        const uint8_t *head = bytes_head(&connection->inbox);
        struct header header;
        header_read(head, &header);
        if (header.length > FRAME_MAX) {
            connection_close(connection, "a frame is too long");
            return;
        }
        if (connection->inbox.length < HEADER_BYTES + header.length)
            return;
        if (!dispatch(connection, &header, (struct span){head + HEADER_BYTES, header.length})) {
            connection_close(connection, "the host does not speak the protocol");
            return;
        }
        if (connection->open)
            bytes_take(&connection->inbox, HEADER_BYTES + header.length);
    }
}

/* Of a link. Not dispatched while the host does not read: a flood of requests cannot pile up answers here. */
static void take_held(struct connection *connection)
{
    if (connection->outbox.length > 4 * OUT_HIGH || !connection->held)
        return;
    mux_taken(connection->link, connection->held);
    connection->held = 0;
    connection_dispatch(connection);
}

void connection_take(struct connection *connection, const uint8_t *data, size_t length)
{
    if (!connection->open || connection->closing)
        return;
    bytes_put(&connection->inbox, data, length);
    if (connection->inbox.failed) {
        connection_close(connection, "out of memory");
        return;
    }
    connection->held += length;
    take_held(connection);
}

static void connection_read(struct connection *connection)
{
    struct bytes *inbox = &connection->inbox;
    uint8_t *room = inbox->length < INBOX_MAX ? bytes_reserve(inbox, CHUNK) : NULL;
    if (!room) {
        connection_close(connection, "out of memory");
        return;
    }
    ssize_t length = read(connection->watch.fd, room, CHUNK);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (length <= 0) {
        connection_close(connection, NULL);
        return;
    }
    bytes_grown(inbox, (size_t)length);
    connection_dispatch(connection);
    if (connection->open && inbox->length == 0)
        bytes_take(inbox, 0); /* gives back what a long frame needed */
}

static void connection_ready(struct watch *watch, uint32_t events)
{
    struct connection *connection = watch->owner;
    if (events & EPOLLOUT)
        connection_flush(connection);
    if (connection->open && events & ~(uint32_t)EPOLLOUT)
        connection_read(connection);
}

static void resume_tasks(struct connection *connection)
{
    for (size_t bucket = 0; bucket < BUCKETS; bucket++)
        for (struct task *task = connection->buckets[bucket], *next; task; task = next) {
            next = task->next_in_bucket;
            if (task->kind == TASK_COMMAND)
                command_resume((struct command *)task);
            else if (task->kind == TASK_WATCH)
                changes_resume((struct changes *)task);
        }
}

/* Of a socket of its own; not read while the host does not read, as with a link. */
static void flush_socket(struct connection *connection)
{
    struct bytes *outbox = &connection->outbox;
    while (outbox->length) {
        ssize_t sent = send(connection->watch.fd, bytes_head(outbox), outbox->length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0) {
            connection_close(connection, NULL);
            return;
        }
        bytes_take(outbox, (size_t)sent);
    }
    uint32_t wanted = (outbox->length > 4 * OUT_HIGH ? 0 : EPOLLIN) | (outbox->length ? EPOLLOUT : 0);
    if (!watch_for(&connection->agent->loop, &connection->watch, wanted))
        connection_close(connection, "it cannot be waited for");
}

void connection_flush(struct connection *connection)
{
    connection->dirty = false;
    if (!connection->open)
        return;
    if (connection->outbox.failed) {
        connection_close(connection, "out of memory");
        return;
    }
    bool was_congested = connection_congested(connection);
    if (connection->link)
        take_held(connection);
    else
        flush_socket(connection);
    if (connection->open && connection->closing && connection->outbox.length == 0)
        connection_close(connection, NULL);
    if (connection->open && (was_congested || connection->link) && !connection_congested(connection))
        resume_tasks(connection);
}

void connection_flush_all(struct agent *agent)
{
    for (bool again = true; again;) {
        again = false;
        for (struct connection *each = agent->connections; each; each = each->next)
            if (each->open && each->dirty) {
                connection_flush(each);
                again = true;
            }
    }
}

void connection_close(struct connection *connection, const char *why)
{
    if (!connection->open)
        return;
    if (why)
        tell("connection closed", why);
    connection->open = false;
    struct link *link = connection->link;
    connection->link = NULL;
    if (link)
        mux_close(link);
    watch_close(&connection->agent->loop, &connection->watch);
    for (size_t bucket = 0; bucket < BUCKETS; bucket++)
        while (connection->buckets[bucket])
            task_abandon(connection->buckets[bucket]);
}

void connection_bury(struct agent *agent)
{
    for (struct connection **at = &agent->connections; *at;) {
        struct connection *connection = *at;
        if (connection->open) {
            at = &connection->next;
            continue;
        }
        *at = connection->next;
        bytes_free(&connection->inbox);
        bytes_free(&connection->outbox);
        free(connection);
    }
}

struct task *task_find(struct connection *connection, uint32_t channel)
{
    struct task *task = connection->buckets[channel % BUCKETS];
    while (task && task->channel != channel)
        task = task->next_in_bucket;
    return task;
}

void task_add(struct connection *connection, struct task *task, uint32_t channel, enum task_kind kind)
{
    struct task **bucket = &connection->buckets[channel % BUCKETS];
    *task = (struct task){.next_in_bucket = *bucket, .connection = connection, .channel = channel, .kind = kind};
    *bucket = task;
    connection->channels++;
}

void task_detach(struct task *task)
{
    struct connection *connection = task->connection;
    if (!connection)
        return;
    for (struct task **at = &connection->buckets[task->channel % BUCKETS]; *at; at = &(*at)->next_in_bucket)
        if (*at == task) {
            *at = task->next_in_bucket;
            connection->channels--;
            break;
        }
    task->connection = NULL;
}

void task_abandon(struct task *task)
{
    switch (task->kind) {
    case TASK_COMMAND:
        command_abandon((struct command *)task);
        break;
    case TASK_UPLOAD:
        upload_abandon((struct upload *)task);
        break;
    case TASK_JOB:
        job_abandon((struct job *)task);
        break;
    case TASK_WATCH:
        changes_abandon((struct changes *)task);
        break;
    }
}
