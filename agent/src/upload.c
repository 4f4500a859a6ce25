/* WRITE: files on their way in. Each is written beside its place and renamed into it when it is whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

enum { TEMPORARY = 64 };

struct upload {
    struct task task;
    struct agent *agent;
    char *path; /* absolute */
    const char *name;
    int folder;
    int fd;
    char temporary[TEMPORARY]; /* empty: there is none */
    mode_t mode;
    int64_t count;
    bool failed;
};

static void discard(struct upload *upload)
{
    if (upload->temporary[0] && unlinkat(upload->folder, upload->temporary, 0) < 0 && errno != ENOENT)
        tell("a file half written stays", strerror(errno));
    upload->temporary[0] = '\0';
    if (upload->fd >= 0)
        close(upload->fd);
    if (upload->folder >= 0)
        close(upload->folder);
    upload->fd = upload->folder = -1;
}

static void fail(struct upload *upload, int number, const char *why)
{
    struct span path = upload->path ? span_of(upload->path) : (struct span){0};
    upload->failed = true;
    discard(upload);
    send_failure(upload->task.connection, upload->task.channel, number, why, path);
}

/* `path` is taken apart and put together again. 0, or a number of errno. */
static int make_folders(char *path)
{
    for (char *at = path; *at;) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        char after = *at;
        *at = '\0';
        int number = *path && strcmp(path, "/") != 0 && mkdir(path, 0755) < 0 ? errno : 0;
        *at = after;
        if (number && number != EEXIST && number != EROFS && number != EACCES && number != EPERM)
            return number; /* with the others it may be there all the same */
    }
    return 0;
}

static void open_file(struct upload *upload)
{
    char *slash = strrchr(upload->path, '/');
    *slash = '\0';
    int number = make_folders(upload->path);
    if (!number) {
        upload->folder = open_folder(AT_FDCWD, *upload->path ? upload->path : "/", 0);
        number = upload->folder < 0 ? errno : 0;
    }
    *slash = '/';
    upload->name = slash + 1;
    if (number) {
        fail(upload, number, NULL);
        return;
    }
    struct stat found;
    if (fstatat(upload->folder, *upload->name ? upload->name : ".", &found, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!S_ISREG(found.st_mode) && !S_ISLNK(found.st_mode)) {
            fail(upload, S_ISDIR(found.st_mode) ? EISDIR : EEXIST, "there is something else than a file");
            return;
        }
    } else if (errno != ENOENT) {
        fail(upload, errno, NULL);
        return;
    }
    snprintf(upload->temporary, TEMPORARY, ".upload-%d-%llu", (int)getpid(),
             (unsigned long long)++upload->agent->uploads);
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    upload->fd = openat(upload->folder, upload->temporary, flags, 0600);
    if (upload->fd < 0) {
        number = errno;
        upload->temporary[0] = '\0';
        fail(upload, number, NULL);
    }
}

static void commit(struct upload *upload)
{
    if (upload->fd < 0 || upload->failed)
        return;
    if (fchmod(upload->fd, upload->mode) < 0 ||
        renameat(upload->folder, upload->temporary, upload->folder, upload->name) < 0) {
        fail(upload, errno, NULL);
        return;
    }
    upload->temporary[0] = '\0';
    upload->count++;
    discard(upload);
}

static bool begin(struct upload *upload, struct span payload)
{
    struct span given;
    int64_t mode;
    commit(upload);
    if (upload->failed)
        return true;
    if (!fields_check(payload) || !fields_text(payload, K_PATH, &given) || given.length == 0 ||
        !fields_number(payload, K_MODE, 0644, &mode))
        return false;
    free(upload->path);
    upload->path = absolute(upload->agent, given);
    upload->mode = (mode_t)(mode & 0777);
    if (upload->path)
        open_file(upload);
    else
        fail(upload, ENOMEM, NULL);
    return true;
}

static bool take_data(struct upload *upload, struct span data)
{
    if (upload->fd < 0 && !upload->failed)
        return false;
    while (data.length && !upload->failed) {
        ssize_t written = write(upload->fd, data.data, data.length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            fail(upload, errno, NULL);
            return true;
        }
        data.data += written;
        data.length -= (size_t)written;
    }
    return true;
}

void upload_abandon(struct upload *upload)
{
    discard(upload);
    task_detach(&upload->task);
    free(upload->path);
    free(upload);
}

bool upload_start(struct connection *connection, uint32_t channel, struct span payload)
{
    struct upload *upload = calloc(1, sizeof *upload);
    if (!upload)
        return false;
    upload->agent = connection->agent;
    upload->folder = upload->fd = -1;
    task_add(connection, &upload->task, channel, TASK_UPLOAD);
    return begin(upload, payload);
}

bool upload_take(struct upload *upload, uint8_t kind, struct span payload)
{
    switch (kind) {
    case DATA:
        return take_data(upload, payload);
    case WRITE:
        return begin(upload, payload);
    case END:
        commit(upload);
        if (!upload->failed) {
            put_number(send_begin(upload->task.connection, DONE, upload->task.channel), K_COUNT, upload->count);
            send_end(upload->task.connection);
        }
        upload_abandon(upload);
        return true;
    default:
        return false;
    }
}
