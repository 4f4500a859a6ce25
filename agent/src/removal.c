/* REMOVE: a file, a link (not what it points to), or with the flag a folder with all that is in it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"

enum { STEP_NAMES = 64, PASSES_MAX = 64 };

struct level {
    DIR *folder;
    char name[NAME_MAX + 1]; /* in the folder above */
    bool removed;            /* something, since this pass through the folder began */
    int passes;
};

struct removal {
    struct job job;
    int parent;
    size_t depth;
    int64_t count;
    bool begun;
    char name[NAME_MAX + 1];
    struct level *levels;
};

static void removal_release(struct job *job)
{
    struct removal *removal = (struct removal *)job;
    while (removal->depth)
        closedir(removal->levels[--removal->depth].folder);
    if (removal->parent >= 0)
        close(removal->parent);
    removal->parent = -1;
    free(removal->levels);
    removal->levels = NULL;
}

static int folder_of(const struct removal *removal)
{
    return removal->depth ? dirfd(removal->levels[removal->depth - 1].folder) : removal->parent;
}

static bool failed(struct removal *removal, int number, const char *why)
{
    return job_fail(&removal->job, number, why, (struct span){0});
}

static bool counted(struct removal *removal)
{
    removal->count++;
    if (removal->depth)
        removal->levels[removal->depth - 1].removed = true;
    return true;
}

/* One name in the folder on top. */
static bool remove_name(struct removal *removal, const char *name)
{
    struct stat found;
    int folder = folder_of(removal);
    bool recursive = removal->job.flags & F_RECURSIVE;
    if (fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) < 0)
        return failed(removal, errno, NULL);
    if (!S_ISDIR(found.st_mode) || !recursive) {
        if (unlinkat(folder, name, S_ISDIR(found.st_mode) ? AT_REMOVEDIR : 0) < 0)
            return failed(removal, errno, NULL);
        return counted(removal);
    }
    if (removal->depth == DEPTH_MAX - 1)
        return failed(removal, EOVERFLOW, "folders nested too deep");
    int fd = open_folder(folder, name, O_NOFOLLOW);
    DIR *opened = fd < 0 ? NULL : fdopendir(fd);
    if (!opened) {
        int number = errno;
        if (fd >= 0)
            close(fd);
        return failed(removal, number, NULL);
    }
    struct level *level = &removal->levels[removal->depth++];
    *level = (struct level){.folder = opened};
    strncpy(level->name, name, NAME_MAX);
    return true;
}

/* The end of a pass through the folder on top: another one while names went away, since what moved meanwhile may have
 * been passed over; then the folder itself. */
static bool leave_folder(struct removal *removal)
{
    struct level *level = &removal->levels[removal->depth - 1];
    if (level->removed && level->passes++ < PASSES_MAX) {
        level->removed = false;
        rewinddir(level->folder);
        return true;
    }
    closedir(level->folder);
    removal->depth--;
    if (unlinkat(folder_of(removal), level->name, AT_REMOVEDIR) < 0)
        return failed(removal, errno, NULL);
    return counted(removal);
}

static bool removal_step(struct job *job)
{
    struct removal *removal = (struct removal *)job;
    for (int round = 0; round < STEP_NAMES; round++) {
        bool more;
        if (!removal->begun) {
            removal->begun = true;
            more = remove_name(removal, removal->name);
        } else if (removal->depth == 0) {
            return job_done(job, removal->count);
        } else {
            errno = 0;
            struct dirent *entry = readdir(removal->levels[removal->depth - 1].folder);
            if (!entry && errno)
                more = failed(removal, errno, NULL);
            else if (!entry)
                more = leave_folder(removal);
            else if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                more = true;
            else
                more = remove_name(removal, entry->d_name);
        }
        if (!more)
            return false;
    }
    return true;
}

bool remove_start(struct connection *connection, uint32_t channel, struct span payload)
{
    struct span given;
    int64_t flags;
    if (!fields_text(payload, K_PATH, &given) || given.length == 0 || !fields_number(payload, K_FLAGS, 0, &flags))
        return false;
    struct removal *removal = job_new(connection, channel, payload, sizeof *removal);
    if (!removal)
        return true;
    removal->job.release = removal_release;
    removal->job.step = removal_step;
    removal->parent = -1;
    char *path = absolute(connection->agent, given);
    size_t size = path ? strlen(path) : 0;
    while (size && path[size - 1] == '/')
        path[--size] = '\0';
    char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : "";
    int number = 0;
    if (!path)
        number = ENOMEM;
    else if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        number = EINVAL;
    else if (strlen(name) > NAME_MAX)
        number = ENAMETOOLONG;
    if (!number) {
        snprintf(removal->name, sizeof removal->name, "%s", name);
        *slash = '\0';
        removal->parent = open_folder(AT_FDCWD, *path ? path : "/", 0);
        number = removal->parent < 0 ? errno : 0;
    }
    if (!number && flags & F_RECURSIVE) {
        removal->levels = calloc(DEPTH_MAX, sizeof *removal->levels);
        number = removal->levels ? 0 : ENOMEM;
    }
    if (number) {
        job_fail(&removal->job, number, number == EINVAL ? "this has no name of its own" : NULL, (struct span){0});
        task_abandon(&removal->job.task);
    }
    free(path);
    return true;
}
