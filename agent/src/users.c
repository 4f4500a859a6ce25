/* /etc/passwd and /etc/group of the sandbox, in which anything may stand. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spawn.h"

enum { FILE_BYTES_MAX = 1 << 20, PARTS_MAX = 8, GROUPS_MAX = 1024, ID_DIGITS_MAX = 10 };

static char *slurp(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return NULL;
    struct stat found;
    size_t length = 0, size = fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0
                                  ? (size_t)(found.st_size < FILE_BYTES_MAX ? found.st_size : FILE_BYTES_MAX)
                                  : 0;
    char *text = size ? malloc(size + 1) : NULL;
    while (text && length < size) {
        ssize_t more = read(fd, text + length, size - length);
        if (more <= 0)
            break;
        length += (size_t)more;
    }
    close(fd);
    if (text)
        text[length] = '\0'; /* what stands behind a zero byte of its own is not seen */
    return text;
}

static size_t split(char *line, char **parts)
{
    size_t count = 0;
    for (char *at = line; at && count < PARTS_MAX; count++) {
        parts[count] = at;
        at = strchr(at, ':');
        if (at)
            *at++ = '\0';
    }
    return count;
}

static bool read_id(const char *text, unsigned int *id)
{
    size_t length = strlen(text);
    if (length == 0 || length > ID_DIGITS_MAX || strspn(text, "0123456789") != length)
        return false;
    unsigned long long number = strtoull(text, NULL, 10);
    *id = (unsigned int)number;
    return number < UINT_MAX;
}

static bool fill(struct user *user, unsigned int uid, unsigned int gid, const char *home, const char *name)
{
    user->uid = uid;
    user->gid = gid;
    user->home = strdup(*home ? home : "/");
    user->name = strdup(name);
    return user->home && user->name;
}

static bool find_entry(const char *wanted, struct user *user)
{
    char *text = slurp("/etc/passwd");
    bool found = false;
    for (char *line = text, *next; line && !found; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *parts[PARTS_MAX];
        unsigned int uid, gid;
        if (split(line, parts) >= 6 && read_id(parts[2], &uid) && read_id(parts[3], &gid) &&
            (!strcmp(parts[0], wanted) || !strcmp(parts[2], wanted)))
            found = fill(user, uid, gid, parts[5], parts[0]);
    }
    free(text);
    return found;
}

static bool is_member(char *members, const char *name)
{
    for (char *rest = members, *each; (each = strsep(&rest, ","));)
        if (!strcmp(each, name))
            return true;
    return false;
}

static void find_groups(struct user *user)
{
    char *text = slurp("/etc/group");
    user->groups = text ? calloc(GROUPS_MAX, sizeof *user->groups) : NULL;
    for (char *line = text, *next; line && user->groups && user->group_count < GROUPS_MAX; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *parts[PARTS_MAX];
        unsigned int gid;
        if (split(line, parts) == 4 && read_id(parts[2], &gid) && is_member(parts[3], user->name))
            user->groups[user->group_count++] = gid;
    }
    free(text);
}

bool user_find(struct span wanted, struct user *user)
{
    *user = (struct user){0};
    char *name = span_copy(wanted);
    unsigned int id;
    bool found = name && find_entry(name, user);
    if (name && !found && (!strcmp(name, "0") || !strcmp(name, "root")))
        found = fill(user, 0, 0, "/root", "root");
    if (name && !found && read_id(name, &id) && id < 65536)
        found = fill(user, id, id, "/", name);
    free(name);
    if (found)
        find_groups(user);
    else
        user_free(user);
    return found;
}

void user_free(struct user *user)
{
    free(user->groups);
    free(user->home);
    free(user->name);
    *user = (struct user){0};
}
