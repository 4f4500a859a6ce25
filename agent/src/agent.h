/* The agent's state, and who does what with it. One thread; nothing here outlives `struct agent`. */
#ifndef AGENT_H
#define AGENT_H

#include <sys/resource.h>
#include <sys/types.h>

#include "bytes.h"
#include "config.h"
#include "loop.h"
#include "mux.h"
#include "processes.h"
#include "wire.h"

struct agent;
struct connection;

enum task_kind { TASK_COMMAND, TASK_UPLOAD, TASK_JOB, TASK_WATCH };

/* Who a channel's frames are for. First member of all of its kinds. */
struct task {
    struct task *next_in_bucket;
    struct connection *connection; /* NULL: nobody listens any more */
    uint32_t channel;
    enum task_kind kind;
};

enum { BUCKETS = 64 };

/* One stream from the host: a socket of its own, or a link of a shared stream. */
struct connection {
    struct agent *agent;
    struct connection *next;
    struct watch watch;
    struct link *link;
    struct bytes inbox;
    struct bytes outbox;
    size_t frame_at; /* in the outbox, where the frame begins that is being put together */
    struct task *buckets[BUCKETS];
    size_t channels;
    size_t held; /* of a link's bytes in the inbox, for which no credit was given yet */
    bool open;
    bool dirty;
    bool closing; /* once the outbox is sent */
};

struct command {
    struct task task;
    struct agent *agent;
    struct command *next;
    pid_t pid;
    uint64_t marker;
    int64_t flags;
    uint64_t cap;
    uint64_t window;
    struct watch outputs[2];
    bool paused[2];
    uint64_t total[2];
    uint64_t kept[2];
    struct watch input;
    struct bytes input_data;
    size_t input_room;
    bool input_done;
    bool over; /* its first process was reaped, with `status` */
    int status;
    int outcome;
    bool swept;
    bool ending;
    bool finished;
    uint64_t cpu_us;
    uint64_t rss_bytes;
    int64_t started;
    int64_t deadline; /* 0: none */
    int64_t give_up;
};

struct agent {
    struct loop loop;
    struct config config;
    struct mux *mux; /* NULL: connections have sockets of their own */
    struct watch listener;
    struct watch children;
    struct connection *connections;
    struct command *commands;
    struct job *jobs;
    struct markers markers;
    struct marker_set kept; /* of commands whose leftovers may live */
    bool first;
    bool untraceable;
    bool configured;
    uid_t uid;
    char *home;
    char *user;
    int null;
    int oom_score;
    int oom_base;
    struct rlimit files;
    int64_t sweep_at;
    int64_t quiet_since;
    int64_t accept_at; /* not before: descriptors ran out */
    uint64_t uploads;
};

/* agent.c */
int agent_main(const char *text, size_t length);
/* main.c: the command line as it was given is visible to everybody inside. */

/* connection.c */
struct connection *connection_new(struct agent *agent, int fd, struct link *link);
bool connection_congested(const struct connection *connection);
/* A frame: `send_begin`, then what belongs into it put into the outbox, then `send_end`. */
struct bytes *send_begin(struct connection *connection, uint8_t kind, uint32_t channel);
void send_end(struct connection *connection);
void send_frame(struct connection *connection, uint8_t kind, uint32_t channel, struct span payload);
void send_failure(struct connection *connection, uint32_t channel, int number, const char *why, struct span path);
/* Bytes from the host: frames are dispatched as they become whole. */
void connection_take(struct connection *connection, const uint8_t *data, size_t length);
void connection_flush(struct connection *connection);
void connection_flush_all(struct agent *agent);
/* Ends it and what lives on it. Its memory goes with `connection_bury`. */
void connection_close(struct connection *connection, const char *why);
void connection_bury(struct agent *agent);
struct task *task_find(struct connection *connection, uint32_t channel);
void task_add(struct connection *connection, struct task *task, uint32_t channel, enum task_kind kind);
/* Frees the channel's number; the task itself lives on. */
void task_detach(struct task *task);
void task_abandon(struct task *task);

/* dispatch.c: false where the frame is against the protocol. */
bool dispatch(struct connection *connection, const struct header *header, struct span payload);

/* command.c */
bool command_start(struct connection *connection, uint32_t channel, struct span payload);
bool command_steer(struct command *command, uint8_t kind, struct span payload);
void command_resume(struct command *command);
void command_end(struct command *command, int outcome);
void command_abandon(struct command *command);
void command_finish_if_done(struct command *command);
void commands_bury(struct agent *agent);

/* supervise.c */
void children_ready(struct watch *watch, uint32_t events);
void commands_due(struct agent *agent, int64_t now);
void sweep_all(struct agent *agent);

/* identity.c */
bool identity_request(struct connection *connection, uint32_t channel, struct span payload);

#endif
