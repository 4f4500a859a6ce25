/* Starting a command. */
#ifndef SPAWN_H
#define SPAWN_H

#include "agent.h"

/* Why a command cannot be started: exit code after the shell's convention, and a message. */
struct refusal {
    int code;
    struct bytes message;
};

struct user {
    uid_t uid;
    gid_t gid;
    gid_t *groups;
    size_t group_count;
    char *home;
    char *name;
};

struct started {
    pid_t pid;
    uint64_t marker;
    int outputs[2]; /* our ends; -1: none */
    int input;
};

/* By name or number, out of the sandbox's own /etc/passwd; a number below 65536 needs no entry. False: unknown. */
bool user_find(struct span wanted, struct user *user);
void user_free(struct user *user);

/* 0: malformed, -1: refused. 1: it runs. */
int spawn(struct agent *agent, struct span request, struct started *started, struct refusal *refusal);
/* Of a terminal, out of ROWS and COLUMNS; false: malformed. */
bool terminal_size(int terminal, struct span request);
void refuse(struct refusal *refusal, int code, const char *before, struct span name, const char *after);

/* environment.c: PATH, HOME, USER, LANG, TMPDIR; then the sandbox's own; then the call's. NULL: refused. Free both the
 * array and `*store`. */
char **environment_make(const struct agent *agent, struct span request, const struct user *user, char **store,
                        struct refusal *refusal);
const char *environment_path(char *const *environment);

#endif
