/* What file requests have in common, and those that only look: READ, STAT, STATS. */
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void *job_new(struct connection *connection, uint32_t channel, struct span payload, size_t size)
{
    struct job *job = calloc(1, size);
    char *copy = job ? span_copy(payload) : NULL;
    if (!copy) {
        free(job);
        send_failure(connection, channel, ENOMEM, NULL, (struct span){0});
        return NULL;
    }
    task_add(connection, &job->task, channel, TASK_JOB);
    job->agent = connection->agent;
    job->payload = copy;
    job->request = (struct span){(const uint8_t *)copy, payload.length};
    job->next = job->agent->jobs;
    job->agent->jobs = job;
    fields_number(payload, K_FLAGS, 0, &job->flags);
    return job;
}

bool job_fail(struct job *job, int number, const char *why, struct span path)
{
    send_failure(job->task.connection, job->task.channel, number, why, path);
    return false;
}

bool job_done(struct job *job, int64_t count)
{
    struct bytes *out = send_begin(job->task.connection, DONE, job->task.channel);
    if (count >= 0)
        put_number(out, K_COUNT, count);
    send_end(job->task.connection);
    return false;
}

void job_abandon(struct job *job)
{
    task_detach(&job->task);
    if (job->release)
        job->release(job);
    job->release = NULL;
    job->over = true;
}

void jobs_step(struct agent *agent)
{
    for (struct job **at = &agent->jobs; *at;) {
        struct job *job = *at;
        if (!job->over && !connection_congested(job->task.connection) && !job->step(job))
            job_abandon(job);
        if (!job->over) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        free(job->payload);
        free(job);
    }
}

bool jobs_wait(const struct agent *agent)
{
    for (const struct job *job = agent->jobs; job; job = job->next)
        if (job->over || !connection_congested(job->task.connection))
            return true;
    return false;
}

char *absolute(const struct agent *agent, struct span path)
{
    const char *workdir = agent->config.workdir ? agent->config.workdir : "";
    bool relative = path.length == 0 || path.data[0] != '/';
    size_t before = relative ? strlen(workdir) + 1 : 0;
    char *made = malloc(before + path.length + 1);
    if (!made)
        return NULL;
    if (relative)
        snprintf(made, before + 1, "%s/", workdir);
    if (path.length)
        memcpy(made + before, path.data, path.length);
    made[before + path.length] = '\0';
    return made;
}

int open_folder(int folder, const char *name, int flags)
{
    return openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
}

/* One component after the other, none of them a link. `path` is taken apart. */
static int open_careful(char *path, int flags)
{
    int folder = open_folder(AT_FDCWD, "/", 0);
    char *rest = path, *part = NULL, *next;
    while ((next = strsep(&rest, "/"))) {
        if (!*next || !strcmp(next, "."))
            continue;
        if (part && folder >= 0) {
            int inner = open_folder(folder, part, O_NOFOLLOW), number = errno;
            close(folder);
            errno = number;
            folder = inner;
        }
        part = next;
    }
    if (folder < 0)
        return -1;
    int fd = openat(folder, part ? part : ".", flags | O_NOFOLLOW), number = errno;
    close(folder);
    errno = number;
    return fd;
}

int open_at(const char *path, int flags, bool follow)
{
    flags |= O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    if (follow)
        return open(path, flags);
    char *copy = strdup(path);
    if (!copy)
        return -1;
    int fd = open_careful(copy, flags), number = errno;
    free(copy);
    errno = number;
    return fd;
}

int check_regular(int fd, uint64_t *size, uint32_t *mode)
{
    struct stat found;
    if (fstat(fd, &found) < 0)
        return errno;
    if (!S_ISREG(found.st_mode))
        return S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
    *size = (uint64_t)found.st_size;
    *mode = found.st_mode & 07777;
    return 0;
}

/* READ: some files one after the other, at most `room` bytes of all together. */
struct reading {
    struct job job;
    size_t at; /* in the request: behind the path that is being read */
    struct span path;
    int64_t index;
    int64_t room;
    int64_t offset;
    int fd;
};

static void reading_release(struct job *job)
{
    struct reading *reading = (struct reading *)job;
    if (reading->fd >= 0)
        close(reading->fd);
    reading->fd = -1;
}

static bool reading_failed(struct reading *reading, int number, const char *why)
{
    struct connection *connection = reading->job.task.connection;
    struct bytes *out = send_begin(connection, FILE_FAILED, reading->job.task.channel);
    put_number(out, K_INDEX, reading->index);
    put_failure(out, number, why, reading->path);
    send_end(connection);
    reading_release(&reading->job);
    return true;
}

static bool reading_open(struct reading *reading)
{
    struct connection *connection = reading->job.task.connection;
    char *path = reading->path.length ? absolute(reading->job.agent, reading->path) : NULL;
    if (!path || memchr(reading->path.data, 0, reading->path.length)) {
        free(path);
        return reading_failed(reading, path ? EINVAL : reading->path.length ? ENOMEM : ENOENT, NULL);
    }
    reading->fd = open_at(path, 0, !(reading->job.flags & F_NOFOLLOW));
    free(path);
    if (reading->fd < 0)
        return reading_failed(reading, errno, NULL);
    uint64_t size;
    uint32_t mode;
    int number = check_regular(reading->fd, &size, &mode);
    if (number)
        return reading_failed(reading, number, "not a regular file");
    struct bytes *out = send_begin(connection, FILE_HEAD, reading->job.task.channel);
    put_number(out, K_INDEX, reading->index);
    put_number(out, K_SIZE, (int64_t)size);
    put_number(out, K_MODE, mode);
    send_end(connection);
    if (reading->offset && lseek(reading->fd, reading->offset, SEEK_SET) < 0)
        return reading_failed(reading, errno, NULL);
    return true;
}

static bool reading_step(struct job *job)
{
    struct reading *reading = (struct reading *)job;
    uint8_t key;
    if (reading->fd < 0) {
        do
            if (!fields_next(job->request, &reading->at, &key, &reading->path))
                return job_done(job, -1);
        while (key != K_PATH);
        reading->index++;
        return reading_open(reading);
    }
    bool whole = job->flags & F_WHOLE;
    int64_t most = reading->room + whole < FILE_CHUNK ? reading->room + whole : FILE_CHUNK;
    struct bytes *out = send_begin(job->task.connection, FILE_DATA, job->task.channel);
    uint8_t *to = bytes_reserve(out, (size_t)most);
    ssize_t length = to ? read(reading->fd, to, (size_t)most) : -1;
    int number = to ? errno : ENOMEM;
    if (length > 0 && length <= reading->room) {
        bytes_grown(out, (size_t)length);
        send_end(job->task.connection);
        reading->room -= length;
        return true;
    }
    bytes_cut(out, job->task.connection->frame_at);
    if (length < 0)
        return reading_failed(reading, number, NULL);
    if (length > 0)
        return reading_failed(reading, EFBIG, "larger than the reader allows");
    reading_release(job);
    return true;
}

bool read_start(struct connection *connection, uint32_t channel, struct span payload)
{
    int64_t room, offset, flags;
    if (!fields_number(payload, K_LENGTH, 0, &room) || !fields_number(payload, K_OFFSET, 0, &offset) ||
        !fields_number(payload, K_FLAGS, 0, &flags))
        return false;
    struct reading *reading = job_new(connection, channel, payload, sizeof *reading);
    if (!reading)
        return true;
    reading->job.step = reading_step;
    reading->job.release = reading_release;
    reading->room = room < INT64_MAX ? room : INT64_MAX - 1;
    reading->offset = offset;
    reading->index = -1;
    reading->fd = -1;
    return true;
}

bool stat_start(struct connection *connection, uint32_t channel, struct span payload)
{
    struct span given;
    if (!fields_text(payload, K_PATH, &given) || given.length == 0)
        return false;
    char *path = absolute(connection->agent, given);
    struct stat found;
    int number = !path ? ENOMEM : lstat(path, &found) < 0 ? errno : 0;
    if (number) {
        send_failure(connection, channel, number, NULL, (struct span){0});
    } else {
        entry_put(send_begin(connection, ENTRIES, channel), span_of(path), (struct span){0}, &found, NULL);
        send_end(connection);
        send_begin(connection, DONE, channel);
        send_end(connection);
    }
    free(path);
    return true;
}

/* A number that stands behind a name in a file of lines; -1: none. */
static int64_t figure(const char *path, const char *name)
{
    char text[16384];
    if (read_small(path, text, sizeof text) <= 0)
        return -1;
    size_t length = strlen(name);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, length) && (line[length] == ' ' || line[length] == ':'))
            return strtoll(line + length + 1, NULL, 10);
    }
    return -1;
}

static void put_if_known(struct bytes *out, uint8_t key, int64_t value)
{
    if (value >= 0)
        put_number(out, key, value);
}

/* Memory is that of the machine where the agent is its first process, else that of its control group where it sees
 * one: figures of a kernel that is shared with others are nobody's business here. */
bool stats_start(struct connection *connection, uint32_t channel)
{
    long count = count_processes();
    int64_t used = -1, total = -1, kills = figure("/sys/fs/cgroup/memory.events", "oom_kill");
    char text[64];
    if (connection->agent->config.init) {
        int64_t left = figure("/proc/meminfo", "MemAvailable");
        total = figure("/proc/meminfo", "MemTotal");
        total = total < 0 ? -1 : total * 1024;
        used = total < 0 || left < 0 ? -1 : total - left * 1024;
        kills = figure("/proc/vmstat", "oom_kill");
    } else if (read_small("/sys/fs/cgroup/memory.current", text, sizeof text) > 0) {
        used = strtoll(text, NULL, 10);
    }
    if (count < 0) {
        send_failure(connection, channel, errno, NULL, (struct span){0});
        return true;
    }
    struct bytes *out = send_begin(connection, DONE, channel);
    put_number(out, K_COUNT, count);
    put_if_known(out, K_MEMORY_BYTES, used);
    put_if_known(out, K_MEMORY_TOTAL, total);
    put_if_known(out, K_OOM_KILLS, kills);
    send_end(connection);
    return true;
}
