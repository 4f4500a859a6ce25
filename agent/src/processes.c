#include "processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STOP_PASSES = 8, LIMITS_BYTES = 4096, STAT_BYTES = 1024 };

/* One living process. */
struct process {
    pid_t pid;
    pid_t parent;
    uint64_t marker; /* the doomed one it falls under, or STRAYS */
    bool found;      /* whether it is doomed */
    bool stopped;
};

struct table {
    struct process *rows;
    size_t count;
    size_t room;
};

bool marker_set_has(const struct marker_set *set, uint64_t marker)
{
    for (size_t at = 0; at < set->count; at++)
        if (set->values[at] == marker)
            return true;
    return false;
}

bool marker_set_add(struct marker_set *set, uint64_t marker)
{
    if (marker_set_has(set, marker))
        return true;
    if (set->count == set->room) {
        size_t room = set->room ? 2 * set->room : 16;
        uint64_t *values = realloc(set->values, room * sizeof *values);
        if (!values)
            return false;
        set->values = values;
        set->room = room;
    }
    set->values[set->count++] = marker;
    return true;
}

void marker_set_remove(struct marker_set *set, uint64_t marker)
{
    for (size_t at = 0; at < set->count; at++)
        if (set->values[at] == marker)
            set->values[at--] = set->values[--set->count];
}

void marker_set_free(struct marker_set *set)
{
    free(set->values);
    *set = (struct marker_set){0};
}

void markers_init(struct markers *markers)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = (uint32_t)getpid(); /* too early for the kernel's: others than ours only collide by chance anyway */
    uint64_t start = ((uint64_t)1 << 48) + ((uint64_t)(seed >> 3) << 32);
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    if (getrlimit(RLIMIT_LOCKS, &limit) == 0 && limit.rlim_max != RLIM_INFINITY && limit.rlim_max < start)
        start = limit.rlim_max;
    markers->top = markers->last = start;
}

uint64_t markers_next(struct markers *markers)
{
    return --markers->last;
}

ssize_t read_small(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    return length;
}

bool marker_of(pid_t pid, uint64_t *marker)
{
    static const char name[] = "Max file locks";
    char path[32], text[LIMITS_BYTES];
    snprintf(path, sizeof path, "/proc/%d/limits", (int)pid);
    if (read_small(path, text, sizeof text) <= 0)
        return false;
    const char *at = strstr(text, name);
    if (!at)
        return false;
    at += sizeof name - 1;
    at += strspn(at, " ");
    at += strcspn(at, " \n"); /* past the soft limit */
    at += strspn(at, " ");
    if (*at < '0' || *at > '9') /* "unlimited" */
        return false;
    errno = 0;
    *marker = strtoull(at, NULL, 10);
    return errno == 0;
}

static bool is_number(const char *name)
{
    return *name && strspn(name, "0123456789") == strlen(name);
}

/* State and parent of a process, from behind its name, which may hold anything. */
static bool look(pid_t pid, char *state, pid_t *parent)
{
    char path[32], text[STAT_BYTES];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_small(path, text, sizeof text) <= 0)
        return false;
    const char *at = strrchr(text, ')');
    int number = 0;
    if (!at || sscanf(at + 1, " %c %d", state, &number) != 2)
        return false;
    *parent = number;
    return true;
}

static struct process *table_add(struct table *table)
{
    if (table->count == table->room) {
        size_t room = table->room ? 2 * table->room : 64;
        struct process *rows = realloc(table->rows, room * sizeof *rows);
        if (!rows)
            return NULL;
        table->rows = rows;
        table->room = room;
    }
    struct process *row = &table->rows[table->count++];
    *row = (struct process){0};
    return row;
}

static int by_pid(const void *one, const void *other)
{
    const struct process *a = one, *b = other;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

static struct process *table_find(const struct table *table, pid_t pid)
{
    struct process wanted = {.pid = pid};
    return table->count ? bsearch(&wanted, table->rows, table->count, sizeof wanted, by_pid) : NULL;
}

/* Everything alive, with what is doomed by its own marker; sorted by number. */
static bool list_processes(const struct markers *markers, const struct marker_set *doomed,
                           const struct marker_set *living, bool strays, struct marker_set *seen, struct table *table)
{
    DIR *folder = opendir("/proc");
    if (!folder)
        return false;
    bool whole = true;
    pid_t self = getpid();
    for (struct dirent *entry; whole && (entry = readdir(folder));) {
        pid_t pid = is_number(entry->d_name) ? atoi(entry->d_name) : self, parent;
        char state;
        if (pid == self || !look(pid, &state, &parent) || state == 'Z' || state == 'X')
            continue;
        struct process *row = table_add(table);
        whole = row != NULL;
        if (!row)
            break;
        row->pid = pid;
        row->parent = parent;
        uint64_t marker;
        if (!marker_of(pid, &marker))
            continue;
        whole = marker_set_add(seen, marker);
        row->found = marker_set_has(doomed, marker);
        row->marker = row->found ? marker : STRAYS;
        if (strays && marker < markers->top && !row->found && !marker_set_has(living, marker))
            row->found = true;
    }
    closedir(folder);
    if (table->count)
        qsort(table->rows, table->count, sizeof *table->rows, by_pid);
    return whole;
}

/* Whoever descends from a doomed process is doomed, too: passes until nothing changes, at most one per generation. */
static void doom_descendants(struct table *table)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t at = 0; at < table->count; at++) {
            struct process *row = &table->rows[at];
            const struct process *parent = row->found ? NULL : table_find(table, row->parent);
            if (parent && parent->found) {
                row->found = changed = true;
                row->marker = parent->marker;
            }
        }
    }
}

/* Stopping first takes the sting out of processes that fork faster than they are killed: a stopped one holds its place
 * among the sandbox's processes and makes no more. */
bool end_processes(const struct markers *markers, const struct marker_set *doomed, const struct marker_set *living,
                   bool strays, struct marker_set *left, struct marker_set *seen)
{
    struct table stopped = {0};
    bool whole = true;
    for (int pass = 0; pass < STOP_PASSES && whole; pass++) {
        struct table table = {0};
        whole = list_processes(markers, doomed, living, strays, seen, &table);
        doom_descendants(&table);
        bool fresh = false;
        size_t before = stopped.count;
        left->count = 0;
        for (size_t at = 0; at < table.count; at++) {
            const struct process *row = &table.rows[at];
            if (!row->found)
                continue;
            whole = marker_set_add(left, row->marker) && whole;
            bool known = false;
            for (size_t old = 0; old < before && !known; old++)
                known = stopped.rows[old].pid == row->pid;
            if (known)
                continue;
            fresh = true;
            kill(row->pid, SIGSTOP); /* it may be gone */
            struct process *kept = table_add(&stopped);
            if (kept)
                kept->pid = row->pid;
            else
                kill(row->pid, SIGKILL); /* better at once than never */
        }
        free(table.rows);
        if (!fresh)
            break;
    }
    for (size_t at = 0; at < stopped.count; at++)
        kill(stopped.rows[at].pid, SIGKILL);
    free(stopped.rows);
    return whole;
}

bool has_other_children(const pid_t *leaders, size_t count)
{
    char path[64], text[65536];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
    if (read_small(path, text, sizeof text) < 0)
        return true; /* a kernel without CONFIG_PROC_CHILDREN: look at everything */
    for (char *at = text; *at;) {
        char *end;
        long child = strtol(at, &end, 10);
        if (end == at)
            break;
        bool known = false;
        for (size_t each = 0; each < count && !known; each++)
            known = leaders[each] == (pid_t)child;
        if (!known)
            return true;
        at = end + strspn(end, " ");
    }
    return false;
}

long count_processes(void)
{
    DIR *folder = opendir("/proc");
    if (!folder)
        return -1;
    long count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        count += is_number(entry->d_name);
    closedir(folder);
    return count;
}
