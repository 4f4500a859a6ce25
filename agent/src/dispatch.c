/* One frame, to whom it belongs. A frame for a channel that is over is late, not wrong. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "files.h"

static bool opens_channel(uint8_t kind)
{
    switch (kind) {
    case EXEC:
    case READ:
    case LIST:
    case STAT:
    case REMOVE:
    case STATS:
    case WATCH:
    case IDENTIFY:
    case QUIESCE:
    case CONFIGURE:
        return true;
    default:
        return false;
    }
}

static bool configure(struct connection *connection, uint32_t channel, struct span payload)
{
    struct agent *agent = connection->agent;
    const char *why = config_read(&agent->config, (const char *)payload.data, payload.length);
    if (why) {
        send_failure(connection, channel, EINVAL, why, (struct span){0});
        return true;
    }
    agent->configured = true;
    send_begin(connection, DONE, channel);
    send_end(connection);
    return true;
}

/* For a driver whose snapshots hold no open connections: answers, then lets go of all of them, also of this one. */
static bool quiesce(struct connection *connection, uint32_t channel)
{
    int64_t count = 0;
    for (struct connection *each = connection->agent->connections; each; each = each->next) {
        count += each->open;
        if (each != connection)
            connection_close(each, NULL);
    }
    put_number(send_begin(connection, DONE, channel), K_COUNT, count);
    send_end(connection);
    connection->closing = true;
    return true;
}

static bool open_channel(struct connection *connection, const struct header *header, struct span payload)
{
    uint32_t channel = header->channel;
    if (header->kind == CONFIGURE)
        return configure(connection, channel, payload);
    if (header->kind == STATS)
        return stats_start(connection, channel);
    if (header->kind == QUIESCE)
        return quiesce(connection, channel);
    if (!fields_check(payload) || !connection->agent->configured)
        return false;
    switch (header->kind) {
    case EXEC:
        return command_start(connection, channel, payload);
    case WRITE:
        return upload_start(connection, channel, payload);
    case READ:
        return read_start(connection, channel, payload);
    case LIST:
        return list_start(connection, channel, payload);
    case STAT:
        return stat_start(connection, channel, payload);
    case REMOVE:
        return remove_start(connection, channel, payload);
    case WATCH:
        return changes_start(connection, channel, payload);
    case IDENTIFY:
        return identity_request(connection, channel, payload);
    default:
        return false;
    }
}

bool dispatch(struct connection *connection, const struct header *header, struct span payload)
{
    struct task *task = task_find(connection, header->channel);
    if (header->kind == PING) {
        send_frame(connection, PONG, header->channel, payload);
        return true;
    }
    if (opens_channel(header->kind) || (header->kind == WRITE && !task)) {
        if (header->channel == 0 || task || connection->channels >= CHANNELS_MAX)
            return false;
        return open_channel(connection, header, payload);
    }
    if (!task)
        return header->kind > 0 && header->kind < 0x80;
    if (task->kind == TASK_COMMAND)
        return command_steer((struct command *)task, header->kind, payload);
    if (header->kind == CLOSE) {
        task_abandon(task);
        return true;
    }
    return task->kind == TASK_UPLOAD && upload_take((struct upload *)task, header->kind, payload);
}
