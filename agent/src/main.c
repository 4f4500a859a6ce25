/* agent CONFIGURATION          the guest agent; the configuration is JSON, or @FILE
 * agent relay CONFIGURATION    the host's end of a stream that connections share
 * agent version */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "relay.h"

enum { CONFIGURATION_MAX = 1 << 20 };

static char *read_configuration(const char *path)
{
    char *text = malloc(CONFIGURATION_MAX + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    while (text && fd >= 0 && length < CONFIGURATION_MAX) {
        ssize_t more = read(fd, text + length, CONFIGURATION_MAX - length);
        if (more <= 0)
            break;
        length += (size_t)more;
    }
    if (fd >= 0)
        close(fd);
    if (fd < 0) {
        free(text);
        return NULL;
    }
    if (text)
        text[length] = '\0';
    return text;
}

int main(int argc, char **argv)
{
    bool relay = argc > 2 && !strcmp(argv[1], "relay");
    if (argc == 2 && !strcmp(argv[1], "version")) {
        printf("ropewalk agent, protocol %d, stream %d\n", VERSION, MUX_VERSION);
        return 0;
    }
    if (argc < 2 || (argc > 2 && !relay)) {
        tell("usage", "agent CONFIGURATION | agent relay CONFIGURATION | agent version");
        return 64;
    }
    char *given = argv[relay ? 2 : 1];
    char *text = given[0] == '@' ? read_configuration(given + 1) : strdup(given);
    if (!text) {
        tell("the configuration cannot be read", given);
        return 64;
    }
    memset(given, 0, strlen(given)); /* /proc shows it to everybody inside, with a token in it */
    size_t length = strlen(text);
    int code = relay ? relay_main(text, length) : agent_main(text, length);
    explicit_bzero(text, length);
    free(text);
    return code;
}
