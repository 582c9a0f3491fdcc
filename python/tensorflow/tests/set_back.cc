// Preloaded by a test: a process whose wall clock can be set back without setting the host's.
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {

std::atomic<time_t> behind{0};

}  // namespace

extern "C" {

void set_clock_back(long seconds) { behind = seconds; }

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec -= behind;
  return result;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec time;
  if (clock_gettime(CLOCK_REALTIME, &time) != 0) return -1;
  *now = {time.tv_sec, time.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  if (now != nullptr) *now = time.tv_sec;
  return time.tv_sec;
}
}
