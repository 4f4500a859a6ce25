/* File requests. */
#ifndef FILES_H
#define FILES_H

#include <sys/stat.h>

#include "agent.h"

enum { DEPTH_MAX = 200 /* of folders, in one request: each holds a descriptor */ };

/* A file request in progress; every step is a bounded slice of work. */
struct job;
typedef bool (*job_step)(struct job *job); /* whether there is more to do */
typedef void (*job_free)(struct job *job);

/* First member of all kinds of jobs. */
struct job {
    struct task task;
    struct job *next;
    struct agent *agent;
    job_step step;
    job_free release;
    bool over;
    char *payload; /* a copy of the request */
    struct span request;
    int64_t flags;
};

/* A job of `size` bytes, zeroed, on its channel; NULL: no memory, which was answered. */
void *job_new(struct connection *connection, uint32_t channel, struct span payload, size_t size);
/* Answers that the job failed; always false, for `return`. */
bool job_fail(struct job *job, int number, const char *why, struct span path);
bool job_done(struct job *job, int64_t count);
void jobs_step(struct agent *agent);
bool jobs_wait(const struct agent *agent); /* whether some job can go on at once */
void job_abandon(struct job *job); /* also of one that is done */

struct upload;
bool upload_start(struct connection *connection, uint32_t channel, struct span payload);
bool upload_take(struct upload *upload, uint8_t kind, struct span payload);
void upload_abandon(struct upload *upload);

/* Each: false where the request is against the protocol. */
bool read_start(struct connection *connection, uint32_t channel, struct span payload);
bool stat_start(struct connection *connection, uint32_t channel, struct span payload);
bool list_start(struct connection *connection, uint32_t channel, struct span payload);
bool remove_start(struct connection *connection, uint32_t channel, struct span payload);
bool stats_start(struct connection *connection, uint32_t channel);

struct changes;
bool changes_start(struct connection *connection, uint32_t channel, struct span payload);
void changes_resume(struct changes *changes);
void changes_abandon(struct changes *changes);

/* Relative to the workdir; NULL with errno: ENOENT for an empty one, ENOMEM. */
char *absolute(const struct agent *agent, struct span path);
/* Opens without ever waiting; `follow` false: no component of the path may be a link. -1 with errno. */
int open_at(const char *path, int flags, bool follow);
int open_folder(int folder, const char *name, int flags);
/* An ENTRY: `prefix` and `name` are its path. `digest`: of SHA-256, or NULL. */
void entry_put(struct bytes *to, struct span prefix, struct span name, const struct stat *found,
               const uint8_t *digest);
/* 0, or a number of errno: EISDIR, EINVAL. */
int check_regular(int fd, uint64_t *size, uint32_t *mode);

#endif
