/* Which processes belong to which command, however they daemonise, and the end of them.
 *
 * Each command starts with a number of its own, its marker, as hard RLIMIT_LOCKS: a limit without effect since Linux
 * 2.4.25 (getrlimit(2)) that fork and exec hand down all the same. An unprivileged process can lower it, never raise
 * it. Markers go down from command to command, so that a process can at best pretend to belong to a newer command; one
 * with the number of no living command is nobody's, and ends with the next sweep. Unlike an environment variable it
 * cannot be taken off, and /proc shows it for every user's processes, alive or zombie. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { STRAYS = 0 }; /* stands for the markers of no living command */

struct markers {
    uint64_t top;
    uint64_t last;
};

struct marker_set {
    uint64_t *values;
    size_t count;
    size_t room;
};

bool marker_set_add(struct marker_set *set, uint64_t marker);
void marker_set_remove(struct marker_set *set, uint64_t marker);
bool marker_set_has(const struct marker_set *set, uint64_t marker);
void marker_set_free(struct marker_set *set);

void markers_init(struct markers *markers);
uint64_t markers_next(struct markers *markers);
/* Of a process, zombie or not; false: none, or no such process. */
bool marker_of(pid_t pid, uint64_t *marker);

/* One sweep: stops everything that is doomed until nothing new turns up, then kills it. `left`: the markers of which
 * something was still there (STRAYS: of strays). `seen`: the markers of everything alive. False: it could not look, for
 * want of memory or descriptors. */
bool end_processes(const struct markers *markers, const struct marker_set *doomed, const struct marker_set *living,
                   bool strays, struct marker_set *left, struct marker_set *seen);

/* Whether the agent has children besides these: what commands left behind. */
bool has_other_children(const pid_t *leaders, size_t count);

/* Of a small file below /proc; the length, or -1. `text` ends with a zero byte. */
ssize_t read_small(const char *path, char *text, size_t size);
/* Processes in /proc; -1: it cannot be read. */
long count_processes(void);

#endif
