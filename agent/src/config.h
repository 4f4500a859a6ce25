/* What the agent is told: a JSON object as its argument, or in a CONFIGURE frame. */
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config {
    int listen_fd; /* -1: none */
    int in_fd;     /* of a stream; -1: none */
    int out_fd;
    char *stream;  /* a device or FIFO; NULL: none */
    char *connect; /* of a relay: a Unix socket; NULL: none */
    char *workdir;
    char *token;
    char **env; /* NAME=value, ends with NULL */
    size_t env_count;
    int64_t idle_ns;
    bool init;      /* process 1 of a machine: mount what a system needs, power off at the end */
    bool configure; /* serve nothing before a CONFIGURE frame */
    bool tied;      /* of a relay: end with the parent */
};

void config_init(struct config *config);
/* Members that are named take the place of what was there; unknown ones are skipped. A reason why not, or NULL; then
 * nothing was changed. */
const char *config_read(struct config *config, const char *text, size_t length);
void config_free(struct config *config);

#endif
