/* The agent: runs commands and moves files inside a sandbox, for whoever holds the other end of its stream. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "files.h"
#include "init.h"
#include "spawn.h"
#include "stream.h"

enum { RETRY_MS = 1000, DEVICE_TRIES = 2000, DEVICE_PAUSE_US = 5000, OUT_OF_DESCRIPTORS_MS = 10 };
#define MILLISECOND_NS 1000000

/* A pipe or device that all connections share. */
struct shared {
    struct mux mux;
    struct stream stream;
};

static void say_hello(struct connection *connection)
{
    const struct agent *agent = connection->agent;
    struct bytes *out = send_begin(connection, HELLO, 0);
    put_number(out, K_VERSION, VERSION);
    if (agent->first)
        put_text(out, K_FEATURES, "first");
    if (agent->untraceable)
        put_text(out, K_FEATURES, "untraceable");
    if (!agent->configured)
        put_text(out, K_FEATURES, "unconfigured");
    put_text(out, K_FEATURES, "identify");
    put_text(out, K_FEATURES, "watch");
    put_number(out, K_PID, getpid());
    send_end(connection);
}

static void listener_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct agent *agent = watch->owner;
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            watch_stop(&agent->loop, watch);
            agent->accept_at = now_ns() + (int64_t)OUT_OF_DESCRIPTORS_MS * MILLISECOND_NS;
        }
        return; /* or gone already */
    }
    struct connection *connection = connection_new(agent, fd, NULL);
    if (connection)
        say_hello(connection);
    else
        close(fd);
}

static void *link_opened(struct link *link)
{
    struct agent *agent = link->mux->owner;
    struct connection *connection = connection_new(agent, -1, link);
    if (connection)
        say_hello(connection);
    return connection;
}

static void link_received(struct link *link, const uint8_t *data, size_t length)
{
    connection_take(link->owner, data, length);
}

static size_t link_wanted(struct link *link, uint8_t *data, size_t size)
{
    struct connection *connection = link->owner;
    struct bytes *outbox = &connection->outbox;
    size_t length = outbox->length < size ? outbox->length : size;
    if (!length)
        return 0;
    memcpy(data, bytes_head(outbox), length);
    bytes_take(outbox, length);
    connection->dirty = true; /* there is room for more */
    return length;
}

static void link_closed(struct link *link)
{
    connection_close(link->owner, NULL);
}

static const struct mux_hooks hooks = {link_opened, link_received, link_wanted, link_closed};

static void host_lost(struct stream *stream)
{
    mux_drop_links(stream->mux);
}

/* It may not be there yet: its driver is a module that is still starting. */
static int open_device(const char *path)
{
    for (int tries = 0;; tries++) {
        int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0 || (errno != ENOENT && errno != ENODEV && errno != ENXIO) || tries == DEVICE_TRIES)
            return fd;
        usleep(DEVICE_PAUSE_US);
    }
}

/* Out of the way of 0 to 2, which become /dev/null. */
static int moved(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (high >= 0)
        close(fd);
    return high;
}

static const char *open_transports(struct agent *agent, struct shared *shared)
{
    struct config *config = &agent->config;
    int in_fd = config->in_fd, out_fd = config->out_fd;
    shared->stream.in.fd = shared->stream.out.fd = -1;
    if (config->stream)
        in_fd = out_fd = open_device(config->stream);
    else if (in_fd >= 0 && in_fd == out_fd)
        in_fd = out_fd = moved(in_fd);
    else if (in_fd >= 0) {
        in_fd = moved(in_fd);
        out_fd = moved(out_fd);
    }
    if (config->stream || config->in_fd >= 0) {
        if (in_fd < 0 || out_fd < 0)
            return "the stream cannot be opened";
        agent->mux = &shared->mux;
        mux_init(agent->mux, &hooks, agent, false);
        shared->stream.lost = host_lost;
        shared->stream.returns = true;
        if (stream_open(&shared->stream, &agent->loop, agent->mux, in_fd, out_fd))
            return "the stream cannot be waited for";
    }
    if (config->listen_fd < 0)
        return agent->mux ? NULL : "no listen_fd, stream, or in_fd and out_fd";
    int flags = fcntl(config->listen_fd, F_GETFL);
    if (flags < 0 || fcntl(config->listen_fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(config->listen_fd, F_SETFD, FD_CLOEXEC) < 0)
        return "listen_fd is no descriptor";
    watch_init(&agent->listener, config->listen_fd, listener_ready, agent);
    return watch_for(&agent->loop, &agent->listener, EPOLLIN) ? NULL : "listen_fd cannot be waited for";
}

/* Nothing that was open before reaches a command. */
static void shut_descriptors(struct agent *agent)
{
    struct stat found;
    for (int fd = 3; fd < 1024; fd++) { /* more are inherited by nobody who starts an agent */
        int flags = fcntl(fd, F_GETFD);
        if (flags >= 0)
            fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
    for (int fd = 0; fd < 3; fd++)
        if (fstat(fd, &found) < 0 && dup2(agent->null, fd) < 0)
            tell("no standard descriptors", strerror(errno));
}

/* Against the commands, which may be the same user: no tracing, no inherited descriptors, no signals. */
static void protect(struct agent *agent)
{
    char text[16];
    umask(022);
    agent->oom_score = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    ssize_t length = agent->oom_score < 0 ? -1 : read(agent->oom_score, text, sizeof text - 1);
    if (length > 0) {
        text[length] = '\0';
        agent->oom_base = atoi(text);
    }
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &agent->files) == 0) {
        most = (struct rlimit){agent->files.rlim_max, agent->files.rlim_max};
        setrlimit(RLIMIT_NOFILE, &most);
    }
    struct sigaction usual = {.sa_handler = SIG_DFL}, ignore = {.sa_handler = SIG_IGN}, before;
    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN)
            sigaction(number, &usual, NULL); /* commands would inherit it */
    sigaction(SIGPIPE, &ignore, NULL);
    agent->untraceable = prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
    if (!agent->first && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
        tell("orphans go to somebody else", strerror(errno));
}

static const char *set_up(struct agent *agent, struct shared *shared)
{
    struct user user;
    char number[16];
    agent->first = getpid() == 1;
    agent->uid = getuid();
    agent->configured = !agent->config.configure;
    if (agent->config.init && !agent->first) {
        agent->config.init = false; /* it would turn somebody else's machine off */
        return "init is for process 1";
    }
    if (agent->config.init)
        init_mount();
    init_crash_reports(agent->config.init);
    snprintf(number, sizeof number, "%u", (unsigned int)agent->uid);
    if (user_find(span_of(number), &user)) {
        agent->home = user.home;
        agent->user = user.name;
        free(user.groups);
    } else {
        agent->home = strdup("/");
        agent->user = strdup(number);
    }
    agent->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (agent->null < 0 || !agent->home || !agent->user || loop_open(&agent->loop))
        return "no /dev/null, memory or epoll";
    const char *why = open_transports(agent, shared);
    if (why)
        return why;
    shut_descriptors(agent);
    protect(agent);
    markers_init(&agent->markers);
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    int fd = signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC);
    watch_init(&agent->children, fd, children_ready, agent);
    if (fd < 0 || !watch_for(&agent->loop, &agent->children, EPOLLIN))
        return "no signalfd";
    return NULL;
}

static void sooner(int64_t *due, int64_t at)
{
    if (at && at < *due)
        *due = at;
}

/* How long nothing will be due, in milliseconds; -1: for ever. */
static int pause_ms(const struct agent *agent, const struct stream *stream, int64_t now)
{
    int64_t due = INT64_MAX;
    if (jobs_wait(agent))
        return 0;
    for (const struct command *each = agent->commands; each; each = each->next) {
        sooner(&due, each->deadline);
        if (each->ending)
            sooner(&due, agent->sweep_at ? agent->sweep_at : now);
    }
    if (!agent->connections && !agent->commands)
        sooner(&due, agent->quiet_since + agent->config.idle_ns);
    sooner(&due, agent->accept_at);
    if (stream->away && stream->in.fd >= 0)
        sooner(&due, now + (int64_t)RETRY_MS * MILLISECOND_NS);
    if (due == INT64_MAX)
        return -1;
    int64_t pause = due <= now ? 0 : (due - now + MILLISECOND_NS - 1) / MILLISECOND_NS;
    return pause < 3600000 ? (int)pause : 3600000;
}

static void accept_again(struct agent *agent, int64_t now)
{
    if (agent->accept_at && agent->accept_at <= now && watch_for(&agent->loop, &agent->listener, EPOLLIN))
        agent->accept_at = 0;
}

/* Until nothing ran and nobody was connected for the idle time. */
static void run(struct agent *agent, struct stream *stream)
{
    agent->quiet_since = now_ns();
    if (agent->mux)
        stream_flush(stream); /* says that it is there */
    for (;;) {
        int64_t now = now_ns();
        if (agent->connections || agent->commands)
            agent->quiet_since = now;
        else if (now - agent->quiet_since >= agent->config.idle_ns)
            return;
        loop_once(&agent->loop, pause_ms(agent, stream, now));
        now = now_ns();
        accept_again(agent, now);
        commands_due(agent, now);
        jobs_step(agent);
        connection_flush_all(agent);
        if (agent->mux) {
            stream_retry(stream);
            stream_flush(stream);
            connection_flush_all(agent);
        }
        connection_bury(agent);
        commands_bury(agent);
    }
}

/* Nothing is connected and nothing runs any more. */
static void tear_down(struct agent *agent, struct shared *shared)
{
#ifdef SANITIZED /* which looks for leaks now, and has to be let */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
#endif
    if (agent->mux) {
        stream_close(&shared->stream);
        mux_free(agent->mux);
    }
    connection_bury(agent);
    jobs_step(agent);
    marker_set_free(&agent->kept);
    config_free(&agent->config);
    free(agent->home);
    free(agent->user);
    free(agent);
    free(shared);
}

int agent_main(const char *text, size_t length)
{
    struct agent *agent = calloc(1, sizeof *agent);
    struct shared *shared = calloc(1, sizeof *shared);
    if (!agent || !shared) {
        tell("it cannot start", "out of memory");
        return 70;
    }
    config_init(&agent->config);
    watch_init(&agent->listener, -1, NULL, NULL);
    const char *why = config_read(&agent->config, text, length);
    if (!why)
        why = set_up(agent, shared);
    if (why) {
        tell("it cannot start", why);
        if (agent->config.init)
            init_power_off();
        tear_down(agent, shared);
        return 64;
    }
    run(agent, &shared->stream);
    if (!agent->first)
        sweep_all(agent);
    if (agent->config.init)
        init_power_off();
    tear_down(agent, shared);
    return 0;
}
