// One call each of many system calls.
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/un.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/select.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <sys/utsname.h>
#include <time.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <termios.h>
#include <sys/sendfile.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/file.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
int main(){
 int p[2],sv[2]; pipe(p); pipe2(p,O_CLOEXEC|O_NONBLOCK); socketpair(AF_UNIX,SOCK_STREAM,0,sv);
 int s=socket(AF_INET,SOCK_STREAM|SOCK_CLOEXEC,IPPROTO_TCP); struct sockaddr_in a={.sin_family=AF_INET,.sin_port=0,.sin_addr={htonl(0x7f000001)}};
 int one=1; setsockopt(s,SOL_SOCKET,SO_REUSEADDR,&one,4);
 bind(s,(void*)&a,sizeof a); listen(s,5); socklen_t l=sizeof a; getsockname(s,(void*)&a,&l);
 int c=socket(AF_INET,SOCK_STREAM,0); connect(c,(void*)&a,sizeof a); l=sizeof a; int d=accept(s,(void*)&a,&l); close(d);
 fcntl(s,F_SETFL,O_NONBLOCK); accept4(s,0,0,SOCK_NONBLOCK|SOCK_CLOEXEC);
 struct sockaddr_un u={.sun_family=AF_UNIX,.sun_path="/nonexistent/sock"}; int us=socket(AF_UNIX,SOCK_DGRAM,0); connect(us,(void*)&u,sizeof u);
 struct sockaddr_in6 a6={.sin6_family=AF_INET6,.sin6_port=htons(80)}; inet_pton(6,"::1",&a6.sin6_addr); int s6=socket(AF_INET6,SOCK_DGRAM,0); bind(s6,(void*)&a6,sizeof a6); sendto(s6,"hello",5,MSG_NOSIGNAL,(void*)&a6,sizeof a6);
 send(sv[0],"abc\n\1\2003",6,0); char b[100]; recv(sv[1],b,100,MSG_DONTWAIT); recv(sv[1],b,100,MSG_DONTWAIT);
 struct iovec v[2]={{"one",3},{"a much longer text that goes on and on for ever",47}}; writev(sv[0],v,2); struct iovec r[2]={{b,10},{b+10,90}}; readv(sv[1],r,2);
 struct msghdr m={.msg_iov=v,.msg_iovlen=2}; sendmsg(sv[0],&m,0); m.msg_iov=r; recvmsg(sv[1],&m,0);
 struct pollfd pf[2]={{sv[1],POLLIN},{sv[0],POLLIN|POLLOUT}}; poll(pf,2,100); poll(pf,1,0);
 int e=epoll_create1(EPOLL_CLOEXEC); struct epoll_event ev={.events=EPOLLIN|EPOLLOUT,.data.u64=7}; epoll_ctl(e,EPOLL_CTL_ADD,sv[0],&ev); struct epoll_event evs[4]; epoll_wait(e,evs,4,10); epoll_ctl(e,EPOLL_CTL_DEL,sv[0],0);
 fd_set f; FD_ZERO(&f); FD_SET(sv[1],&f); struct timeval tv={0,1000}; select(sv[1]+1,&f,0,0,&tv);
 int fd=open("xx",O_RDWR|O_CREAT|O_TRUNC,0644); write(fd,"data",4); lseek(fd,0,SEEK_SET); read(fd,b,100); fsync(fd); ftruncate(fd,100); fchmod(fd,0600); dup(fd); dup2(fd,50); dup3(fd,51,O_CLOEXEC); fcntl(fd,F_GETFL); fcntl(fd,F_SETFD,FD_CLOEXEC); fcntl(fd,F_DUPFD_CLOEXEC,10); flock(fd,2);
 struct stat st; stat("/tmp",&st); lstat("/dev/null",&st); fstat(fd,&st); statx(AT_FDCWD,"/tmp",0,STATX_BASIC_STATS,(void*)b); 
 mkdir("dd",0755); rename("xx","yy"); symlink("yy","zz"); readlink("zz",b,100); unlink("zz"); rmdir("dd"); chdir("."); getcwd(b,100); access("/tmp",R_OK|W_OK); chmod("yy",0640); unlinkat(AT_FDCWD,"yy",0); umask(022);
 sigset_t ss; sigemptyset(&ss); sigaddset(&ss,SIGUSR1); sigaddset(&ss,SIGCHLD); sigprocmask(SIG_BLOCK,&ss,0); signal(SIGUSR2,SIG_IGN); sigprocmask(SIG_UNBLOCK,&ss,&ss); kill(getpid(),0);
 struct utsname un; uname(&un); struct timespec ts={0,1000}; nanosleep(&ts,0); clock_nanosleep(CLOCK_MONOTONIC,0,&ts,0); syscall(SYS_clock_gettime,CLOCK_PROCESS_CPUTIME_ID,&ts); prctl(PR_SET_NAME,"hello"); prctl(PR_GET_DUMPABLE); struct statfs sf; statfs("/proc",&sf); sched_yield(); cpu_set_t cs; sched_getaffinity(0,sizeof cs,&cs); getrusage(RUSAGE_SELF,(void*)b); setpgid(0,0); getppid(); getuid(); geteuid(); getgid(); getpgrp(); gettid();
 preadv(fd,r,2,1); pwritev(fd,v,2,3); preadv2(fd,r,2,0,0); struct itimerval it={{0,0},{100,7}},was; setitimer(ITIMER_REAL,&it,0); setitimer(ITIMER_VIRTUAL,&it,&was); getitimer(ITIMER_VIRTUAL,&was); setitimer(ITIMER_REAL,0,0);
 ioctl(0,TCGETS,b); ioctl(1,TIOCGWINSZ,b);
 struct winsize ws; int ptm=posix_openpt(O_RDWR|O_NOCTTY), on=1; ioctl(ptm,TIOCGWINSZ,&ws); ws.ws_col=80; ioctl(ptm,TIOCSWINSZ,&ws); ioctl(ptm,FIONREAD,&on); ioctl(ptm,FIONBIO,&on); ioctl(ptm,FIONBIO,16L);
 struct flock lk={.l_type=F_WRLCK,.l_start=1,.l_len=10}; fcntl(fd,F_SETLK,&lk); fcntl(fd,F_GETLK,&lk); lk.l_pid=0; lk.l_whence=SEEK_END; lk.l_start=-3; fcntl(fd,F_OFD_SETLK,&lk); lk.l_type=9; fcntl(fd,F_SETLKW,&lk); fcntl(-1,F_GETLK,&lk); fcntl(fd,F_SETLK,16L);

 int x=fork(); if(!x) _exit(3); int w; waitpid(x,&w,0); waitpid(-1,&w,WNOHANG);
 open("/tmp",O_RDONLY|O_DIRECTORY|O_CLOEXEC); DIR*dir=opendir("/proc/self/ns"); readdir(dir); closedir(dir);
 syscall(SYS_getrandom,b,8,1); eventfd(3,EFD_NONBLOCK); timerfd_create(CLOCK_MONOTONIC,TFD_CLOEXEC); read(-1,b,3); write(1,(void*)8,5); open((void*)8,0); syscall(999,1,2,3,4,5,6); sendfile(1,0,0,0); munmap(0,0); madvise(0,0,MADV_DONTNEED); mprotect(0,0,PROT_READ|PROT_WRITE); alarm(0); shutdown(sv[0],SHUT_RDWR); getsockopt(s,SOL_SOCKET,SO_ERROR,&one,&l); pause==0; fdatasync(1); getpriority(0,0); utimensat(AT_FDCWD,"/nonexistent",0,0); linkat(AT_FDCWD,"/nonexistent",AT_FDCWD,"/x",AT_SYMLINK_FOLLOW); faccessat(AT_FDCWD,"/tmp",R_OK,0); fallocate(-1,0,0,1); mremap(0,0,0,1,0); getgroups(0,0); setsid(); tgkill(getpid(),gettid(),0);
 return 0;}
