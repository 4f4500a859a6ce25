#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { OOM_COMMAND = 500, FOLDERS_MAX = 1024 };

/* What stands in the way, told by the child. */
enum stage { STAGE_NONE, STAGE_SETUP, STAGE_FOLDER, STAGE_USER, STAGE_EXEC };

struct outcome {
    enum stage stage;
    int number;     /* of errno */
    bool is_there;  /* the program, whose interpreter is not */
};

/* All that the child needs, made before it exists: it shares our memory until it is another program. */
struct launch {
    char **argv;
    char **environment;
    char **programs;
    const char *workdir;
    const char *cwd;
    const char *terminal; /* NULL: none */
    int stdio[3];
    const struct user *user; /* NULL: ours */
    struct rlimit files;
    uint64_t marker;
    volatile struct outcome *outcome; /* as it changes behind the compiler's back */
};

void refuse(struct refusal *refusal, int code, const char *before, struct span name, const char *after)
{
    refusal->code = code;
    bytes_cut(&refusal->message, 0);
    bytes_put(&refusal->message, before, strlen(before));
    bytes_put(&refusal->message, name.data, name.length < TEXT_MAX ? name.length : TEXT_MAX);
    bytes_put(&refusal->message, after, strlen(after));
}

static void refuse_why(struct refusal *refusal, const char *before, struct span name, const char *between, int number)
{
    char text[160];
    snprintf(text, sizeof text, "%s%s", between, strerror(number));
    refuse(refusal, 126, before, name, text);
}

bool terminal_size(int terminal, struct span request)
{
    int64_t rows, columns;
    if (!fields_number(request, K_ROWS, 0, &rows) || !fields_number(request, K_COLUMNS, 0, &columns))
        return false;
    struct winsize size = {.ws_row = (unsigned short)(rows < 0xFFFF ? rows : 0xFFFF),
                           .ws_col = (unsigned short)(columns < 0xFFFF ? columns : 0xFFFF)};
    if (ioctl(terminal, TIOCSWINSZ, &size) < 0)
        tell("a terminal keeps its size", strerror(errno));
    return true;
}

static __attribute__((noreturn)) void child_fails(struct launch *launch, enum stage stage, bool is_there)
{
    launch->outcome->number = errno;
    launch->outcome->is_there = is_there;
    launch->outcome->stage = stage;
    _exit(127);
}

static void child_stdio(struct launch *launch)
{
    if (launch->terminal) { /* opened by a session's leader it becomes its controlling terminal */
        int fd = open(launch->terminal, O_RDWR);
        if (fd < 0 || (launch->user && fchown(fd, launch->user->uid, (gid_t)-1) < 0))
            child_fails(launch, STAGE_SETUP, false);
        for (int target = 0; target < 3; target++)
            if (dup2(fd, target) < 0)
                child_fails(launch, STAGE_SETUP, false);
        if (fd > 2)
            close(fd);
        return;
    }
    for (int target = 0; target < 3; target++)
        if (dup2(launch->stdio[target], target) < 0)
            child_fails(launch, STAGE_SETUP, false);
}

/* By the kernel's calls: the C library's would tell other threads, in memory that is not the child's. */
static void child_user(struct launch *launch)
{
    const struct user *user = launch->user;
    const gid_t *groups = user->group_count ? user->groups : &user->gid;
    size_t count = user->group_count ? user->group_count : 1;
    if (syscall(SYS_setgroups, count, groups) < 0 || syscall(SYS_setgid, user->gid) < 0 ||
        syscall(SYS_setuid, user->uid) < 0)
        child_fails(launch, STAGE_USER, false);
}

static __attribute__((noreturn)) void child_execs(struct launch *launch)
{
    int number = ENOENT;
    bool is_there = false;
    for (char **program = launch->programs; *program; program++) {
        execve(*program, launch->argv, launch->environment);
        if (errno == EAGAIN) /* over the limit of processes, which counts for the new user alone */
            child_fails(launch, STAGE_EXEC, false);
        if (errno != ENOENT && errno != ENOTDIR) {
            number = errno;
            is_there = false;
        } else if (access(*program, F_OK) == 0) {
            number = ENOENT;
            is_there = true;
        }
    }
    errno = number;
    child_fails(launch, STAGE_EXEC, is_there);
}

/* As whoever we are before the user changes: a folder of PATH that the user may not enter counts if it has the program. */
static void child_searches(struct launch *launch)
{
    char **kept = launch->programs;
    if (strchr(launch->argv[0], '/'))
        return;
    for (char **program = launch->programs; *program; program++)
        if (access(*program, F_OK) == 0)
            *kept++ = *program;
    *kept = NULL;
}

static __attribute__((noinline, noreturn)) void child(struct launch *launch)
{
    struct rlimit marker = {.rlim_cur = launch->marker, .rlim_max = launch->marker};
    sigset_t none;
    sigemptyset(&none);
    struct sigaction usual = {.sa_handler = SIG_DFL};
    if (setsid() < 0 || setrlimit(RLIMIT_LOCKS, &marker) < 0 || setrlimit(RLIMIT_NOFILE, &launch->files) < 0)
        child_fails(launch, STAGE_SETUP, false);
    child_stdio(launch);
    if ((launch->cwd[0] != '/' && chdir(launch->workdir) < 0) || chdir(launch->cwd) < 0)
        child_fails(launch, STAGE_FOLDER, false);
    child_searches(launch);
    if (launch->user)
        child_user(launch);
    sigaction(SIGPIPE, &usual, NULL); /* all others are at their default in the agent, or caught, which ends with exec */
    sigprocmask(SIG_SETMASK, &none, NULL);
    child_execs(launch);
}

/* What the next child is born with: commands go before the agent when memory is short. */
static void set_oom_score(struct agent *agent, int score)
{
    char text[16];
    int length = snprintf(text, sizeof text, "%d", score);
    if (agent->oom_score >= 0 && pwrite(agent->oom_score, text, (size_t)length, 0) < 0)
        return; /* not allowed here: protection that is missing, no reason to refuse service */
}

/* Returns when the child is another program, or no more. */
static pid_t launch_child(struct launch *launch)
{
#ifdef SANITIZED /* whose bookkeeping a child must not share */
    int ends[2];
    char none;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        child(launch);
    close(ends[1]);
    while (pid > 0 && read(ends[0], &none, 1) < 0 && errno == EINTR)
        ;
    close(ends[0]);
#else
    pid_t pid = vfork();
    if (pid == 0)
        child(launch);
#endif
    return pid;
}

static bool launch_refused(const struct launch *launch, struct span program, struct span cwd, struct refusal *refusal)
{
    int number = launch->outcome->number;
    switch (launch->outcome->stage) {
    case STAGE_NONE:
        return false;
    case STAGE_FOLDER:
        refuse_why(refusal, "cannot enter ", cwd, ": ", number);
        return true;
    case STAGE_USER:
        refuse_why(refusal, "cannot become user '", span_of(launch->user->name), "': ", number);
        return true;
    case STAGE_EXEC:
        if (number == EAGAIN)
            refuse(refusal, 126, "", program, ": no more processes are allowed in this sandbox");
        else if (number != ENOENT)
            refuse_why(refusal, "", program, ": ", number);
        else
            refuse(refusal, 127, "", program, launch->outcome->is_there ? ": its interpreter is not found" : ": not found");
        return true;
    default:
        refuse_why(refusal, "", span_of("cannot start"), ": ", number);
        return true;
    }
}

/* Where the program may be: as it stands where it has a slash, else in each folder of PATH. One block of memory. */
static char **find_programs(const char *program, const char *path)
{
    size_t length = strlen(program), folders = 1, names = 0;
    bool search = !strchr(program, '/');
    for (const char *at = path; search && *at && folders < FOLDERS_MAX; at++)
        folders += *at == ':';
    if (search && length > NAME_MAX)
        folders = 0; /* no file has such a name */
    size_t text = search ? folders * (length + 3) + strlen(path) : length + 1;
    char **programs = calloc(1, (folders + 1) * sizeof *programs + text);
    if (!programs || !folders)
        return programs;
    char *to = (char *)(programs + folders + 1);
    if (!search) {
        programs[0] = memcpy(to, program, length + 1);
        return programs;
    }
    for (; names < folders; names++) {
        size_t size = strcspn(path, ":");
        programs[names] = to;
        to += sprintf(to, "%.*s/%s", size ? (int)size : 1, size ? path : ".", program) + 1;
        path += size + (path[size] == ':');
    }
    return programs;
}

/* Pipes or a terminal. `ours` and `theirs` hold what is open, or -1. 0, or a number of errno. */
static int open_stdio(struct agent *agent, int64_t flags, struct launch *launch, struct started *ours, int theirs[3],
                      char terminal[64])
{
    int ends[2];
    launch->stdio[0] = agent->null;
    if (flags & F_PTY) {
        ours->outputs[0] = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
        int unlock = 0, number = 0;
        if (ours->outputs[0] < 0 || ioctl(ours->outputs[0], TIOCSPTLCK, &unlock) < 0 ||
            ioctl(ours->outputs[0], (ioctl_call)TIOCGPTN, &number) < 0)
            return errno;
        ours->input = fcntl(ours->outputs[0], F_DUPFD_CLOEXEC, 3);
        snprintf(terminal, 64, "/dev/pts/%d", number);
        launch->terminal = terminal;
        return ours->input < 0 ? errno : 0;
    }
    for (int which = 0; which < 2; which++) {
        if (pipe2(ends, O_CLOEXEC) < 0)
            return errno;
        ours->outputs[which] = ends[0];
        launch->stdio[1 + which] = theirs[which] = ends[1];
    }
    if (!(flags & F_STDIN))
        return 0;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return errno;
    ours->input = ends[1];
    launch->stdio[0] = theirs[2] = ends[0];
    return 0;
}

static void close_all(const int *fds, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (fds[at] >= 0)
            close(fds[at]);
}

/* The words as an array over one copy of them; NULL: none, or one with a zero byte, or no memory. */
static char **read_words(struct span request, char **store)
{
    size_t count = 0, used = 0, at = 0;
    uint8_t key;
    struct span word;
    for (; fields_next(request, &at, &key, &word);)
        count += key == K_ARGV;
    char **words = count ? calloc(count + 1, sizeof *words) : NULL;
    *store = malloc(request.length + 1);
    count = 0;
    for (at = 0; words && *store && fields_next(request, &at, &key, &word);) {
        if (key != K_ARGV)
            continue;
        if (word.length && memchr(word.data, 0, word.length))
            break;
        words[count++] = *store + used;
        if (word.length)
            memcpy(*store + used, word.data, word.length);
        used += word.length;
        (*store)[used++] = '\0'; /* a field's head takes more room than that */
    }
    if (words && *store && at == request.length && words[0][0])
        return words;
    free(words);
    free(*store);
    *store = NULL;
    return NULL;
}

static bool start_child(struct agent *agent, struct span request, struct launch *launch, struct started *started,
                        struct refusal *refusal)
{
    int theirs[3] = {-1, -1, -1}, ours[3];
    char terminal[64];
    int64_t flags = 0;
    struct span cwd;
    fields_number(request, K_FLAGS, 0, &flags); /* both were looked at before */
    fields_text(request, K_CWD, &cwd);
    int number = open_stdio(agent, flags, launch, started, theirs, terminal);
    if (number == 0) {
        launch->outcome->stage = STAGE_NONE;
        set_oom_score(agent, agent->oom_base > OOM_COMMAND ? agent->oom_base : OOM_COMMAND);
        started->pid = launch_child(launch);
        number = started->pid < 0 ? errno : 0;
        set_oom_score(agent, agent->oom_base);
        if (number == EAGAIN)
            refuse(refusal, 126, "", span_of(launch->argv[0]), ": no more processes are allowed in this sandbox");
        else if (number)
            refuse_why(refusal, "", span_of("cannot start"), ": ", number);
        else if (launch_refused(launch, span_of(launch->argv[0]), cwd, refusal))
            number = -1;
        if (number < 0)
            waitpid(started->pid, NULL, 0);
    } else {
        refuse_why(refusal, "", span_of(flags & F_PTY ? "no terminal" : "cannot start"), ": ", number);
    }
    close_all(theirs, 3);
    if (number == 0) {
        if (flags & F_PTY)
            terminal_size(started->outputs[0], request);
        return true;
    }
    memcpy(ours, (int[]){started->outputs[0], started->outputs[1], started->input}, sizeof ours);
    close_all(ours, 3);
    return false;
}

static bool request_is_sound(struct span request)
{
    int64_t number;
    struct span text;
    static const uint8_t numbers[] = {K_FLAGS, K_OUTPUT_MAX, K_CREDIT, K_TIMEOUT_MS, K_ROWS, K_COLUMNS};
    for (size_t at = 0; at < sizeof numbers; at++)
        if (!fields_number(request, numbers[at], 0, &number))
            return false;
    return fields_text(request, K_CWD, &text) && fields_text(request, K_USER, &text);
}

int spawn(struct agent *agent, struct span request, struct started *started, struct refusal *refusal)
{
    volatile struct outcome outcome = {0};
    struct launch launch = {.outcome = &outcome, .files = agent->files};
    struct user user = {0};
    struct span wanted, cwd;
    char *words = NULL, *variables = NULL, *folder = NULL;
    bool runs = false;
    *started = (struct started){.outputs = {-1, -1}, .input = -1};
    if (!request_is_sound(request))
        return 0;
    fields_text(request, K_USER, &wanted);
    fields_text(request, K_CWD, &cwd);
    launch.argv = read_words(request, &words);
    if (!launch.argv) {
        refuse(refusal, 126, "no command, or one with a zero byte in it", (struct span){0}, "");
        goto end;
    }
    if (wanted.length && !user_find(wanted, &user)) {
        refuse(refusal, 126, "unknown user '", wanted, "'");
        goto end;
    }
    launch.environment = environment_make(agent, request, wanted.length ? &user : NULL, &variables, refusal);
    if (!launch.environment)
        goto end;
    folder = cwd.length ? span_copy(cwd) : NULL;
    launch.workdir = agent->config.workdir ? agent->config.workdir : "/";
    launch.cwd = folder ? folder : launch.workdir;
    launch.programs = find_programs(launch.argv[0], environment_path(launch.environment));
    if (!launch.programs || (cwd.length && !folder)) {
        refuse(refusal, 126, "out of memory", (struct span){0}, "");
        goto end;
    }
    if (wanted.length && user.uid != agent->uid)
        launch.user = &user;
#ifdef SANITIZED
    launch.outcome = mmap(NULL, sizeof outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
#endif
    launch.marker = started->marker = markers_next(&agent->markers);
    runs = start_child(agent, request, &launch, started, refusal);
#ifdef SANITIZED
    munmap((void *)(uintptr_t)launch.outcome, sizeof outcome);
#endif
end:
    free(launch.programs);
    free(launch.environment);
    free(launch.argv);
    free(variables);
    free(words);
    free(folder);
    user_free(&user);
    return runs ? 1 : -1;
}
