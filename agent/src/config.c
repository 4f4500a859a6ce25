#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "json.h"

enum { IDLE_S = 900, ENV_MAX = 65536 };

void config_init(struct config *config)
{
    *config = (struct config){
        .listen_fd = -1, .in_fd = -1, .out_fd = -1, .idle_ns = (int64_t)IDLE_S * 1000000000};
}

static void free_env(char **env)
{
    for (char **each = env; env && *each; each++)
        free(*each);
    free(env);
}

void config_free(struct config *config)
{
    free(config->stream);
    free(config->connect);
    free(config->workdir);
    free(config->token);
    free_env(config->env);
    config_init(config);
}

static char *taken(struct json *json, char *before)
{
    struct bytes value = {0};
    free(before);
    json_string(json, &value);
    if (!json->bad)
        return (char *)value.data; /* fresh: it starts where its memory does */
    bytes_free(&value);
    return NULL;
}

static void read_env(struct json *json, struct config *config)
{
    struct bytes name = {0};
    size_t room = 16, count = 0;
    char **env = calloc(room, sizeof *env);
    if (!env)
        json->bad = true;
    for (bool first = true; !json->bad && json_member(json, &first, &name);) {
        struct bytes value = {0};
        json_string(json, &value);
        if (count + 2 > room && !json->bad) {
            char **grown = room < ENV_MAX ? realloc(env, 2 * room * sizeof *env) : NULL;
            if (grown) {
                memset(grown + room, 0, room * sizeof *env);
                env = grown;
                room *= 2;
            } else {
                json->bad = true;
            }
        }
        char *pair = json->bad ? NULL : malloc(name.length + value.length);
        if (pair) {
            memcpy(pair, bytes_head(&name), name.length - 1);
            pair[name.length - 1] = '=';
            memcpy(pair + name.length, bytes_head(&value), value.length);
            env[count++] = pair;
        } else {
            json->bad = true;
        }
        bytes_free(&value);
    }
    bytes_free(&name);
    free_env(config->env);
    config->env = env;
    config->env_count = count;
}

static void read_idle(struct json *json, struct config *config)
{
    double seconds = json_number(json);
    if (!(seconds > 0))
        json->bad = true;
    else
        config->idle_ns = seconds < 1e9 ? (int64_t)(seconds * 1e9) : (int64_t)1e18;
}

static int read_fd(struct json *json)
{
    double number = json_number(json);
    if (json->bad || number != (double)(int)number || number < 0 || number > 1 << 20) {
        json->bad = true;
        return -1;
    }
    return (int)number;
}

static void read_member(struct json *json, struct config *config, const char *name)
{
    if (json_null(json))
        return;
    if (!strcmp(name, "listen_fd"))
        config->listen_fd = read_fd(json);
    else if (!strcmp(name, "in_fd"))
        config->in_fd = read_fd(json);
    else if (!strcmp(name, "out_fd"))
        config->out_fd = read_fd(json);
    else if (!strcmp(name, "stream"))
        config->stream = taken(json, config->stream);
    else if (!strcmp(name, "connect"))
        config->connect = taken(json, config->connect);
    else if (!strcmp(name, "workdir"))
        config->workdir = taken(json, config->workdir);
    else if (!strcmp(name, "token"))
        config->token = taken(json, config->token);
    else if (!strcmp(name, "env"))
        read_env(json, config);
    else if (!strcmp(name, "idle_timeout_s"))
        read_idle(json, config);
    else if (!strcmp(name, "init"))
        config->init = json_bool(json);
    else if (!strcmp(name, "configure"))
        config->configure = json_bool(json);
    else if (!strcmp(name, "tied"))
        config->tied = json_bool(json);
    else
        json_skip(json);
}

static char *copied(const char *text)
{
    return text ? strdup(text) : NULL;
}

/* What a failed reading must not have touched. */
static bool config_copy(const struct config *from, struct config *to)
{
    *to = *from;
    to->stream = copied(from->stream);
    to->connect = copied(from->connect);
    to->workdir = copied(from->workdir);
    to->token = copied(from->token);
    to->env = calloc(from->env_count + 1, sizeof *to->env);
    bool whole = to->env && !from->stream == !to->stream && !from->connect == !to->connect &&
                 !from->workdir == !to->workdir && !from->token == !to->token;
    for (size_t at = 0; whole && at < from->env_count; at++)
        whole = (to->env[at] = strdup(from->env[at])) != NULL;
    return whole;
}

const char *config_read(struct config *config, const char *text, size_t length)
{
    struct config fresh;
    if (!config_copy(config, &fresh)) {
        config_free(&fresh);
        return "out of memory";
    }
    struct json json = {.at = text, .end = text + length};
    struct bytes name = {0};
    for (bool first = true; json_member(&json, &first, &name);)
        read_member(&json, &fresh, (const char *)bytes_head(&name));
    bytes_free(&name);
    const char *why = NULL;
    if (!json_over(&json))
        why = "the configuration is not a JSON object of the right members";
    else if (fresh.workdir && fresh.workdir[0] != '/')
        why = "the workdir is not absolute";
    else if ((fresh.in_fd < 0) != (fresh.out_fd < 0))
        why = "in_fd and out_fd belong together";
    if (why) {
        config_free(&fresh);
        return why;
    }
    config_free(config);
    *config = fresh;
    return NULL;
}
