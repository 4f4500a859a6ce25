/* WATCH: what changes in a folder, by inotify(7). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "files.h"

enum {
    FOLDERS_DEFAULT = 1024,
    FOLDERS_MAX = 16384,
    CHANGES_BYTES = 16384,
    INTERESTING = IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM | IN_CLOSE_WRITE | IN_MODIFY | IN_ATTRIB |
                  IN_DELETE_SELF | IN_MOVE_SELF | IN_EXCL_UNLINK | IN_DONT_FOLLOW
};

struct watched {
    int number; /* the kernel's */
    char *path; /* as the events name it: that of the request, or below it */
};

struct changes {
    struct task task;
    struct agent *agent;
    struct watch watch;
    struct watched *folders;
    size_t count;
    size_t room;
    size_t most;
    bool recursive;
    bool overflowed; /* told that there are more folders than may be watched */
    bool paused;
};

static void put_change(struct bytes *out, char kind, const char *folder, const char *name)
{
    size_t mark = put_begin(out, K_ENTRY), path = put_begin(out, K_PATH);
    bytes_put(out, folder, strlen(folder));
    if (*name) {
        if (*folder && folder[strlen(folder) - 1] != '/')
            bytes_put(out, "/", 1);
        bytes_put(out, name, strlen(name));
    }
    put_end(out, path);
    put_bytes(out, K_KIND, &kind, 1);
    put_end(out, mark);
}

static struct watched *find_folder(struct changes *changes, int number)
{
    for (size_t at = 0; at < changes->count; at++)
        if (changes->folders[at].number == number)
            return &changes->folders[at];
    return NULL;
}

static void forget(struct changes *changes, struct watched *folder, bool remove)
{
    if (remove)
        inotify_rm_watch(changes->watch.fd, folder->number); /* it may be gone with its folder */
    free(folder->path);
    *folder = changes->folders[--changes->count];
}

/* Of a folder that went elsewhere, and of what is below it: their paths are no longer true. */
static void forget_below(struct changes *changes, const char *path)
{
    size_t length = strlen(path);
    for (size_t at = 0; at < changes->count; at++) {
        const char *each = changes->folders[at].path;
        if (!strncmp(each, path, length) && (each[length] == '/' || !each[length]))
            forget(changes, &changes->folders[at--], true);
    }
}

/* 0, or a number of errno. */
static int add_folder(struct changes *changes, char *path, int extra)
{
    char *whole = absolute(changes->agent, span_of(path));
    int number = whole ? inotify_add_watch(changes->watch.fd, whole, (uint32_t)INTERESTING | (uint32_t)extra) : -1;
    int why = whole ? errno : ENOMEM;
    free(whole);
    if (number < 0)
        return why;
    struct watched *known = find_folder(changes, number);
    if (known) {
        free(known->path);
        known->path = path;
        return 0;
    }
    if (changes->count == changes->room) {
        size_t room = changes->room ? 2 * changes->room : 16;
        struct watched *folders = realloc(changes->folders, room * sizeof *folders);
        if (!folders)
            return ENOMEM;
        changes->folders = folders;
        changes->room = room;
    }
    changes->folders[changes->count++] = (struct watched){number, path};
    return 0;
}

static char *joined(const char *folder, const char *name)
{
    size_t length = strlen(folder), size = length + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", name);
    return path;
}

/* A folder and, where asked for, all below it. With `out`, what is found in there is told as created: it came before
 * its folder was watched. The walk keeps a list, not a stack of folders, so that depth costs no descriptors. */
static void add_tree(struct changes *changes, char *top, struct bytes *out)
{
    size_t next = changes->count;
    int why = changes->count < changes->most ? add_folder(changes, top, IN_ONLYDIR) : ENOSPC;
    if (why) {
        free(top);
        changes->overflowed = changes->overflowed || why == ENOSPC || why == ENOMEM;
        return;
    }
    for (; changes->recursive && next < changes->count; next++) {
        const char *path = changes->folders[next].path;
        char *whole = absolute(changes->agent, span_of(path));
        int fd = whole ? open_folder(AT_FDCWD, whole, O_NOFOLLOW) : -1;
        DIR *folder = fd < 0 ? NULL : fdopendir(fd);
        free(whole);
        if (!folder && fd >= 0)
            close(fd);
        for (struct dirent *entry; folder && (entry = readdir(folder));) {
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                continue;
            path = changes->folders[next].path;
            if (out && out->length < BATCH_MAX)
                put_change(out, 'c', path, entry->d_name);
            struct stat found;
            if (entry->d_type == DT_UNKNOWN && fstatat(dirfd(folder), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) < 0)
                continue;
            if (entry->d_type != DT_DIR && !(entry->d_type == DT_UNKNOWN && S_ISDIR(found.st_mode)))
                continue;
            char *inner = joined(path, entry->d_name);
            why = inner && changes->count < changes->most ? add_folder(changes, inner, IN_ONLYDIR) : ENOSPC;
            if (why)
                free(inner);
            changes->overflowed = changes->overflowed || why == ENOSPC || why == ENOMEM;
        }
        if (folder)
            closedir(folder);
    }
}

static void tell_event(struct changes *changes, struct bytes *out, const struct inotify_event *event)
{
    struct watched *folder = find_folder(changes, event->wd);
    if (event->mask & IN_Q_OVERFLOW) {
        put_change(out, 'o', "", "");
        return;
    }
    if (!folder)
        return;
    if (event->mask & IN_IGNORED) {
        forget(changes, folder, false);
        return;
    }
    const char *name = event->len ? event->name : "";
    char *path = event->mask & IN_ISDIR && *name ? joined(folder->path, name) : NULL;
    if (event->mask & (IN_CREATE | IN_MOVED_TO)) {
        put_change(out, 'c', folder->path, name);
        if (path && changes->recursive) {
            add_tree(changes, path, out);
            path = NULL;
        }
    } else if (event->mask & (IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF)) {
        put_change(out, 'd', folder->path, name);
        if (path && event->mask & IN_MOVED_FROM)
            forget_below(changes, path);
    } else {
        put_change(out, 'm', folder->path, name);
    }
    free(path);
}

static void changes_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct changes *changes = watch->owner;
    struct connection *connection = changes->task.connection;
    _Alignas(struct inotify_event) char buffer[CHANGES_BYTES];
    if (connection_congested(connection)) { /* the kernel's queue holds some, and says when it ran over */
        watch_stop(&changes->agent->loop, watch);
        changes->paused = true;
        return;
    }
    ssize_t length = read(watch->fd, buffer, sizeof buffer);
    if (length <= 0)
        return;
    bool before = changes->overflowed;
    struct bytes *out = send_begin(connection, CHANGES, changes->task.channel);
    size_t empty = out->length;
    for (ssize_t at = 0; at < length;) {
        const struct inotify_event *event = (const struct inotify_event *)(const void *)(buffer + at);
        tell_event(changes, out, event);
        at += (ssize_t)(sizeof *event + event->len);
    }
    if (changes->overflowed && !before)
        put_change(out, 'o', "", "");
    if (out->length == empty)
        bytes_cut(out, connection->frame_at);
    else
        send_end(connection);
}

void changes_resume(struct changes *changes)
{
    if (changes->paused && watch_for(&changes->agent->loop, &changes->watch, EPOLLIN))
        changes->paused = false;
}

void changes_abandon(struct changes *changes)
{
    task_detach(&changes->task);
    watch_close(&changes->agent->loop, &changes->watch);
    for (size_t at = 0; at < changes->count; at++)
        free(changes->folders[at].path);
    free(changes->folders);
    free(changes);
}

/* A file, or a folder with what is below it. Takes `path`. 0, or a number of errno. */
static int watch_top(struct changes *changes, char *path, bool recursive)
{
    char *whole = absolute(changes->agent, span_of(path));
    struct stat found;
    int why = !whole ? ENOMEM : lstat(whole, &found) < 0 ? errno : 0;
    free(whole);
    changes->recursive = recursive && !why && S_ISDIR(found.st_mode);
    if (changes->recursive) {
        add_tree(changes, path, NULL);
        return changes->count ? 0 : ENOSPC;
    }
    if (!why)
        why = add_folder(changes, path, 0);
    if (why)
        free(path);
    return why;
}

bool changes_start(struct connection *connection, uint32_t channel, struct span payload)
{
    struct span given;
    int64_t flags, most;
    if (!fields_text(payload, K_PATH, &given) || given.length == 0 || !fields_number(payload, K_FLAGS, 0, &flags) ||
        !fields_number(payload, K_ENTRIES_MAX, FOLDERS_DEFAULT, &most))
        return false;
    struct changes *changes = calloc(1, sizeof *changes);
    char *path = changes ? span_copy(given) : NULL;
    if (!path) {
        free(changes);
        return false;
    }
    changes->agent = connection->agent;
    changes->most = (size_t)(most < 1 ? 1 : most < FOLDERS_MAX ? most : FOLDERS_MAX);
    task_add(connection, &changes->task, channel, TASK_WATCH);
    watch_init(&changes->watch, inotify_init1(IN_NONBLOCK | IN_CLOEXEC), changes_ready, changes);
    int why = changes->watch.fd < 0 ? errno : watch_top(changes, path, flags & F_RECURSIVE);
    if (why || !watch_for(&changes->agent->loop, &changes->watch, EPOLLIN)) {
        send_failure(connection, channel, why ? why : EIO, NULL, given);
        changes_abandon(changes);
        return true;
    }
    struct bytes *out = send_begin(connection, WATCHING, channel);
    put_number(out, K_COUNT, (int64_t)changes->count);
    if (changes->overflowed)
        put_number(out, K_FLAGS, 1);
    send_end(connection);
    return true;
}
