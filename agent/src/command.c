/* One running command: its streams, its limits, its end. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "spawn.h"

enum { PUMP_ROUNDS = 4, GIVE_UP_S = 10 };
#define SECOND_NS 1000000000

/* What leftovers of a detached command still print: read, so that they neither block nor die of it. */
struct drain {
    struct watch watch;
    struct agent *agent;
};

static void output_ready(struct watch *watch, uint32_t events);
static void input_ready(struct watch *watch, uint32_t events);
static void close_output(struct command *command, int which);

static bool is_detached(const struct command *command)
{
    return command->flags & F_DETACH;
}

static void start_watching(struct command *command, const struct started *started)
{
    struct loop *loop = &command->agent->loop;
    for (int which = 0; which < 2; which++) {
        struct watch *watch = &command->outputs[which];
        watch_init(watch, started->outputs[which], output_ready, command);
        if (watch->fd < 0)
            continue;
        /* Both set: pipes and terminals take the flag. */
        if (fcntl(watch->fd, F_SETFL, O_NONBLOCK) < 0 || !watch_for(loop, watch, EPOLLIN))
            watch_close(loop, watch);
    }
    watch_init(&command->input, started->input, input_ready, command);
    if (started->input >= 0 && fcntl(started->input, F_SETFL, O_NONBLOCK) < 0)
        watch_close(loop, &command->input);
}

static void answer_refusal(struct connection *connection, uint32_t channel, struct refusal *refusal)
{
    struct bytes *out = send_begin(connection, EXIT, channel);
    put_number(out, K_CODE, refusal->code);
    put_bytes(out, K_MESSAGE, bytes_head(&refusal->message), refusal->message.length);
    send_end(connection);
}

bool command_start(struct connection *connection, uint32_t channel, struct span payload)
{
    struct agent *agent = connection->agent;
    struct started started;
    struct refusal refusal = {.code = 126};
    int64_t cap, window, timeout_ms;
    struct command *command = calloc(1, sizeof *command);
    if (!command)
        return false;
    int outcome = spawn(agent, payload, &started, &refusal);
    if (outcome < 0)
        answer_refusal(connection, channel, &refusal);
    bytes_free(&refusal.message);
    if (outcome <= 0) {
        free(command);
        return outcome < 0;
    }
    fields_number(payload, K_OUTPUT_MAX, 0, &cap); /* all were looked at before it was started */
    fields_number(payload, K_CREDIT, 0, &window);
    fields_number(payload, K_TIMEOUT_MS, 0, &timeout_ms);
    fields_number(payload, K_FLAGS, 0, &command->flags);
    command->agent = agent;
    command->pid = started.pid;
    command->marker = started.marker;
    command->cap = (uint64_t)cap;
    command->window = (uint64_t)window;
    command->input_room = STDIN_WINDOW;
    command->started = now_ns();
    if (timeout_ms)
        command->deadline = timeout_ms < INT64_MAX / 2000000 ? command->started + timeout_ms * 1000000 : 0;
    start_watching(command, &started);
    command->next = agent->commands;
    agent->commands = command;
    task_add(connection, &command->task, channel, TASK_COMMAND);
    put_number(send_begin(connection, STARTED, channel), K_PID, command->pid);
    send_end(connection);
    return true;
}

static void drain_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct drain *drain = watch->owner;
    uint8_t scratch[4096];
    ssize_t length = read(watch->fd, scratch, sizeof scratch);
    if (length > 0 || (length < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    watch_close(&drain->agent->loop, watch);
    free(drain);
}

/* The command is over and has written all it will; what it left running may still hold the pipe. */
static void release_output(struct command *command, int which)
{
    struct watch *watch = &command->outputs[which];
    struct drain *drain = is_detached(command) ? calloc(1, sizeof *drain) : NULL;
    if (!drain) {
        close_output(command, which);
        return;
    }
    watch_stop(&command->agent->loop, watch);
    drain->agent = command->agent;
    watch_init(&drain->watch, watch->fd, drain_ready, drain);
    watch->fd = -1;
    if (!watch_for(&drain->agent->loop, &drain->watch, EPOLLIN)) {
        close(drain->watch.fd);
        free(drain);
    }
    command_finish_if_done(command);
}

static void close_output(struct command *command, int which)
{
    watch_close(&command->agent->loop, &command->outputs[which]);
    command_finish_if_done(command);
}

static void count_output(struct command *command, int which, size_t length, size_t sent)
{
    command->total[which] += length;
    command->kept[which] += sent;
    command->window -= sent;
}

/* One read, straight into the frame that carries it. What read(2) says. */
static ssize_t pass_on(struct command *command, int which, size_t size, uint64_t room)
{
    struct connection *connection = command->task.connection;
    struct bytes *out = send_begin(connection, which ? STDERR : STDOUT, command->task.channel);
    uint8_t *to = bytes_reserve(out, size);
    if (!to) {
        errno = EAGAIN; /* the connection is about to be closed for it */
        return -1;
    }
    ssize_t length = read(command->outputs[which].fd, to, size);
    size_t sent = length > 0 ? ((uint64_t)length < room ? (size_t)length : (size_t)room) : 0;
    if (sent)
        bytes_grown(out, sent);
    else
        bytes_cut(out, connection->frame_at);
    if (sent)
        send_end(connection);
    if (length > 0)
        count_output(command, which, (size_t)length, sent);
    return length;
}

static ssize_t drop(struct command *command, int which)
{
    uint8_t scratch[CHUNK];
    ssize_t length = read(command->outputs[which].fd, scratch, sizeof scratch);
    if (length > 0)
        count_output(command, which, (size_t)length, 0);
    return length;
}

/* Moves output on: within the cap and the window to the host, past the cap to nowhere. */
static void pump(struct command *command, int which)
{
    struct watch *watch = &command->outputs[which];
    for (int round = 0; round < PUMP_ROUNDS && watch->fd >= 0; round++) {
        struct connection *connection = command->task.connection;
        uint64_t room = connection ? command->cap - command->kept[which] : 0;
        ssize_t length;
        if (room > 0) {
            size_t size = command->window < CHUNK ? (size_t)command->window : CHUNK;
            if (size == 0 || connection_congested(connection)) {
                command->paused[which] = true;
                watch_stop(&command->agent->loop, watch);
                return;
            }
            length = pass_on(command, which, size, room);
        } else {
            length = drop(command, which);
        }
        if (length < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (command->over && command->swept)
                release_output(command, which);
            return;
        }
        if (length <= 0) { /* also EIO: the last process let go of the terminal */
            close_output(command, which);
            return;
        }
    }
}

static void output_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct command *command = watch->owner;
    pump(command, watch == &command->outputs[1]);
}

void command_resume(struct command *command)
{
    for (int which = 0; which < 2; which++) {
        if (!command->paused[which] || command->outputs[which].fd < 0)
            continue;
        command->paused[which] = false;
        if (watch_for(&command->agent->loop, &command->outputs[which], EPOLLIN))
            pump(command, which);
        else
            close_output(command, which);
    }
}

static void close_input(struct command *command)
{
    watch_close(&command->agent->loop, &command->input);
}

/* Writes what input there is. */
static void push(struct command *command)
{
    struct bytes *data = &command->input_data;
    struct watch *input = &command->input;
    size_t written = 0;
    while (data->length && input->fd >= 0) {
        ssize_t count = write(input->fd, bytes_head(data), data->length < CHUNK ? data->length : CHUNK);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN) {
            if (!watch_for(&command->agent->loop, input, EPOLLOUT))
                close_input(command);
            break;
        }
        if (count < 0) {
            close_input(command);
            break;
        }
        bytes_take(data, (size_t)count);
        written += (size_t)count;
    }
    if (input->fd < 0 && data->length) { /* nobody reads any more: take it and forget it */
        written += data->length;
        bytes_take(data, data->length);
    }
    command->input_room += written;
    if (written && command->task.connection) {
        put_number(send_begin(command->task.connection, STDIN_CREDIT, command->task.channel), K_CREDIT,
                   (int64_t)written);
        send_end(command->task.connection);
    }
    if (data->length || input->fd < 0)
        return;
    watch_stop(&command->agent->loop, input);
    if (command->input_done && command->flags & F_PTY) {
        command->input_done = false;
        if (write(input->fd, "\x04", 1) < 0)
            close_input(command);
    } else if (command->input_done) {
        close_input(command);
    }
}

static void input_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    push(watch->owner);
}

static bool steer_signal(struct command *command, struct span payload)
{
    int64_t number;
    if (!fields_check(payload) || !fields_number(payload, K_SIGNAL, 0, &number) || number < 1 || number > 64)
        return false;
    if (!command->over) /* while it is not reaped its number is its own */
        kill(-command->pid, (int)number);
    return true;
}

bool command_steer(struct command *command, uint8_t kind, struct span payload)
{
    int64_t credit;
    switch (kind) {
    case CREDIT:
        if (!fields_check(payload) || !fields_number(payload, K_CREDIT, 0, &credit))
            return false;
        command->window += (uint64_t)credit; /* of two numbers below 2^63 each, at most 2^63 after many */
        if (command->window > INT64_MAX)
            command->window = INT64_MAX;
        command_resume(command);
        return true;
    case STDIN:
        if (payload.length > command->input_room)
            return false;
        command->input_room -= payload.length;
        bytes_put(&command->input_data, payload.data, payload.length);
        push(command);
        return !command->input_data.failed;
    case STDIN_EOF:
        command->input_done = true;
        push(command);
        return true;
    case SIGNAL:
        return steer_signal(command, payload);
    case RESIZE:
        if (!fields_check(payload))
            return false;
        return !(command->flags & F_PTY) || command->outputs[0].fd < 0 ||
               terminal_size(command->outputs[0].fd, payload);
    case CLOSE:
        command_end(command, F_KILLED);
        return true;
    default:
        return false;
    }
}

/* Ends the whole tree; the result follows when nothing of it is left. */
void command_end(struct command *command, int outcome)
{
    command->outcome |= outcome;
    command->deadline = 0;
    command->swept = false;
    command->give_up = now_ns() + (int64_t)GIVE_UP_S * SECOND_NS;
    command->ending = true;
}

/* The connection is lost. */
void command_abandon(struct command *command)
{
    task_detach(&command->task);
    command_resume(command);
    if (!is_detached(command) && !command->finished)
        command_end(command, F_KILLED);
}

static void answer_exit(struct command *command)
{
    struct connection *connection = command->task.connection;
    struct bytes *out = send_begin(connection, EXIT, command->task.channel);
    if (WIFSIGNALED(command->status))
        put_number(out, K_SIGNAL, WTERMSIG(command->status));
    else
        put_number(out, K_CODE, WEXITSTATUS(command->status));
    put_number(out, K_FLAGS, command->outcome);
    put_number(out, K_CPU_US, (int64_t)command->cpu_us);
    put_number(out, K_RSS_BYTES, (int64_t)command->rss_bytes);
    put_number(out, K_STDOUT_BYTES, (int64_t)command->total[0]);
    put_number(out, K_STDERR_BYTES, (int64_t)command->total[1]);
    put_number(out, K_DURATION_US, (now_ns() - command->started) / 1000);
    send_end(connection);
}

void command_finish_if_done(struct command *command)
{
    if (!command->over || !command->swept || command->finished)
        return;
    for (int which = 0; which < 2; which++)
        if (command->outputs[which].fd >= 0 && !command->paused[which] && !command->finished)
            pump(command, which);
    if (command->outputs[0].fd >= 0 || command->outputs[1].fd >= 0 || command->finished)
        return;
    command->finished = true;
    command->ending = false;
    close_input(command);
    if (command->task.connection) {
        answer_exit(command);
        task_detach(&command->task);
    }
}

void commands_bury(struct agent *agent)
{
    for (struct command **at = &agent->commands; *at;) {
        struct command *command = *at;
        if (!command->finished) {
            at = &command->next;
            continue;
        }
        *at = command->next;
        bytes_free(&command->input_data);
        free(command);
    }
}
