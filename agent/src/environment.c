#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spawn.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

enum { DEFAULTS = 5 };

/* Later ones win. */
struct variable {
    const char *text;
    size_t name_length;
    size_t order;
};

static int by_name(const void *one, const void *other)
{
    const struct variable *a = one, *b = other;
    size_t shorter = a->name_length < b->name_length ? a->name_length : b->name_length;
    int difference = memcmp(a->text, b->text, shorter);
    if (difference == 0 && a->name_length != b->name_length)
        difference = a->name_length < b->name_length ? -1 : 1;
    if (difference == 0)
        difference = a->order < b->order ? -1 : 1;
    return difference;
}

static bool same_name(const struct variable *one, const struct variable *other)
{
    return one->name_length == other->name_length && memcmp(one->text, other->text, one->name_length) == 0;
}

/* The call's, as strings one behind the other in `store`. */
static bool read_request(struct span request, char *store, struct variable *all, size_t *count,
                         struct refusal *refusal)
{
    uint8_t key;
    struct span value;
    for (size_t at = 0; fields_next(request, &at, &key, &value);) {
        if (key != K_ENV)
            continue;
        const uint8_t *equals = value.length ? memchr(value.data, '=', value.length) : NULL;
        if (!equals || equals == value.data || memchr(value.data, 0, value.length)) {
            struct span name = {value.data, equals ? (size_t)(equals - value.data) : value.length};
            refuse(refusal, 126, "bad variable '", name, "'");
            return false;
        }
        memcpy(store, value.data, value.length);
        store[value.length] = '\0';
        all[*count] = (struct variable){store, (size_t)(equals - value.data), *count};
        store += value.length + 1;
        ++*count;
    }
    return true;
}

static size_t defaults(const struct agent *agent, const struct user *user, char *store, size_t size,
                       struct variable *all)
{
    const char *home = user ? user->home : agent->home, *name = user ? user->name : agent->user;
    const char *pairs[DEFAULTS][2] = {
        {"PATH", DEFAULT_PATH}, {"HOME", home}, {"USER", name}, {"LANG", "C.UTF-8"}, {"TMPDIR", "/tmp"}};
    size_t used = 0;
    for (size_t at = 0; at < DEFAULTS; at++) {
        int length = snprintf(store + used, size - used, "%s=%s", pairs[at][0], pairs[at][1]);
        all[at] = (struct variable){store + used, strlen(pairs[at][0]), at};
        used += (size_t)length + 1;
    }
    return used;
}

char **environment_make(const struct agent *agent, struct span request, const struct user *user, char **store,
                        struct refusal *refusal)
{
    const char *home = user ? user->home : agent->home, *name = user ? user->name : agent->user;
    size_t asked = 0, own = sizeof DEFAULT_PATH + strlen(home) + strlen(name) + 128;
    uint8_t key;
    struct span value;
    for (size_t at = 0; fields_next(request, &at, &key, &value);)
        asked += key == K_ENV;
    size_t most = DEFAULTS + agent->config.env_count + asked, count = DEFAULTS;
    struct variable *all = calloc(most, sizeof *all);
    char **environment = calloc(most + 1, sizeof *environment);
    *store = malloc(own + request.length + asked);
    if (!all || !environment || !*store) {
        refuse(refusal, 126, "out of memory", (struct span){0}, "");
        goto failed;
    }
    size_t used = defaults(agent, user, *store, own, all);
    for (size_t at = 0; at < agent->config.env_count; at++) {
        const char *text = agent->config.env[at];
        all[count] = (struct variable){text, strcspn(text, "="), count};
        count++;
    }
    if (!read_request(request, *store + used, all, &count, refusal))
        goto failed;
    qsort(all, count, sizeof *all, by_name);
    size_t kept = 0;
    for (size_t at = 0; at < count; at++)
        if (at + 1 == count || !same_name(&all[at], &all[at + 1]))
            environment[kept++] = (char *)(uintptr_t)all[at].text; /* execve takes them so and changes nothing */
    free(all);
    return environment;
failed:
    free(all);
    free(environment);
    free(*store);
    *store = NULL;
    return NULL;
}

const char *environment_path(char *const *environment)
{
    for (char *const *each = environment; *each; each++)
        if (!strncmp(*each, "PATH=", 5))
            return *each + 5;
    return DEFAULT_PATH;
}
