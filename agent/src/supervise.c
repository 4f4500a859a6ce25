/* Which processes ended, and the end of those that have to. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

#define SWEEP_NS 2000000
#define SLOW_SWEEP_NS 20000000

static struct command *leader(struct agent *agent, pid_t pid)
{
    for (struct command *each = agent->commands; each; each = each->next)
        if (each->pid == pid && !each->over)
            return each;
    return NULL;
}

static struct command *owner_of(struct agent *agent, pid_t pid)
{
    uint64_t marker;
    if (!marker_of(pid, &marker))
        return NULL;
    for (struct command *each = agent->commands; each; each = each->next)
        if (each->marker == marker)
            return each;
    return NULL;
}

static void charge(struct command *command, const struct rusage *usage)
{
    command->cpu_us += (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
                       (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
    if ((uint64_t)usage->ru_maxrss * 1024 > command->rss_bytes)
        command->rss_bytes = (uint64_t)usage->ru_maxrss * 1024;
}

/* Every zombie; the CPU time of a command's orphans counts for it. Whether some command is over; `childless`: the agent
 * has no child at all. */
static bool reap(struct agent *agent, bool *childless)
{
    bool over = false;
    *childless = false;
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
            *childless = errno == ECHILD;
            return over;
        }
        if (info.si_pid == 0)
            return over;
        struct command *command = leader(agent, info.si_pid);
        struct command *owner = command ? command : owner_of(agent, info.si_pid);
        struct rusage usage = {0};
        int status = 0;
        if (wait4(info.si_pid, &status, 0, &usage) < 0)
            return over;
        if (owner)
            charge(owner, &usage);
        if (command) {
            command->over = true;
            command->status = status;
            command->deadline = 0;
            over = true;
        }
    }
}

static bool any_orphans(struct agent *agent)
{
    size_t count = 0, at = 0;
    for (struct command *each = agent->commands; each; each = each->next)
        count += !each->over;
    pid_t *pids = calloc(count + 1, sizeof *pids);
    if (!pids)
        return true;
    for (struct command *each = agent->commands; each; each = each->next)
        if (!each->over)
            pids[at++] = each->pid;
    bool found = has_other_children(pids, count);
    free(pids);
    return found;
}

static void reap_and_judge(struct agent *agent)
{
    bool childless;
    if (!reap(agent, &childless))
        return;
    bool leftovers = !childless && any_orphans(agent);
    for (struct command *each = agent->commands; each; each = each->next) {
        if (!each->over || each->swept || each->finished)
            continue;
        if (each->flags & F_DETACH && !each->outcome) {
            each->swept = true;
            if (!marker_set_add(&agent->kept, each->marker))
                tell("leftovers of a command may end", strerror(ENOMEM));
        } else if (each->ending) {
            continue; /* the sweep that is on its way says when */
        } else if (leftovers) {
            command_end(each, 0);
        } else {
            each->swept = true;
        }
        command_finish_if_done(each);
    }
}

void children_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct agent *agent = watch->owner;
    struct signalfd_siginfo told;
    while (read(watch->fd, &told, sizeof told) > 0)
        ;
    agent->sweep_at = 0;
    reap_and_judge(agent);
}

/* Markers that nobody bears any more need not be kept. */
static void prune_kept(struct agent *agent, const struct marker_set *seen)
{
    for (size_t at = 0; at < agent->kept.count; at++)
        if (!marker_set_has(seen, agent->kept.values[at])) {
            marker_set_remove(&agent->kept, agent->kept.values[at]);
            at--;
        }
}

/* Ends the processes of the commands that have to end; comes again until none is left. */
static void sweep(struct agent *agent, int64_t now)
{
    struct marker_set doomed = {0}, living = {0}, left = {0}, seen = {0};
    bool whole = true;
    for (struct command *each = agent->commands; each; each = each->next)
        whole = marker_set_add(each->ending ? &doomed : &living, each->marker) && whole;
    for (size_t at = 0; at < agent->kept.count; at++)
        if (!marker_set_has(&doomed, agent->kept.values[at]))
            whole = marker_set_add(&living, agent->kept.values[at]) && whole;
    for (size_t at = 0; at < doomed.count; at++)
        marker_set_remove(&agent->kept, doomed.values[at]);
    /* With half a list of the living, strays could be anybody's. */
    bool looked = end_processes(&agent->markers, &doomed, &living, agent->first && whole, &left, &seen) && whole;
    if (looked)
        prune_kept(agent, &seen);
    for (struct command *each = agent->commands; each; each = each->next) {
        if (!each->ending)
            continue;
        bool gone = looked && each->over && !marker_set_has(&left, each->marker) && !marker_set_has(&left, STRAYS);
        if (gone || now > each->give_up) {
            each->ending = false;
            each->swept = true;
            command_finish_if_done(each);
        }
    }
    agent->sweep_at = now + (left.count ? SWEEP_NS : SLOW_SWEEP_NS);
    marker_set_free(&doomed);
    marker_set_free(&living);
    marker_set_free(&left);
    marker_set_free(&seen);
}

void commands_due(struct agent *agent, int64_t now)
{
    bool ending = false;
    for (struct command *each = agent->commands; each; each = each->next) {
        if (each->deadline && each->deadline <= now) {
            command_end(each, F_TIMED_OUT);
            agent->sweep_at = 0;
        }
        ending = ending || each->ending;
    }
    if (ending && now >= agent->sweep_at)
        sweep(agent, now);
}

/* At the end of an agent that is not process 1, whose commands nobody else ends. */
void sweep_all(struct agent *agent)
{
    struct marker_set doomed = {0}, living = {0}, left = {0}, seen = {0};
    bool more = true;
    for (struct command *each = agent->commands; each; each = each->next)
        more = marker_set_add(&doomed, each->marker) && more;
    for (size_t at = 0; at < agent->kept.count; at++)
        more = marker_set_add(&doomed, agent->kept.values[at]) && more;
    for (int round = 0; round < 1000 && doomed.count && more; round++) {
        left.count = 0;
        if (!end_processes(&agent->markers, &doomed, &living, false, &left, &seen) || !left.count)
            break;
        usleep(SWEEP_NS / 1000);
    }
    marker_set_free(&doomed);
    marker_set_free(&living);
    marker_set_free(&left);
    marker_set_free(&seen);
}
