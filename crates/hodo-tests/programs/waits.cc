// Waiting system calls: cancelled, interrupted by handlers that take backtraces, in all kinds of children, with invalid
// addresses.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include <stdio.h>
#include <signal.h>
#include <errno.h>
#include <sys/wait.h>
#include <spawn.h>
#include <time.h>
#include <execinfo.h>
#include <string.h>
#include <sys/time.h>
extern char**environ;
struct D{~D(){ puts("destroyed"); fflush(stdout);} };
static int p[2];
static volatile int begun;
static void* blocked(void*){ D d; char c; begun=1; read(p[0],&c,1); puts("not reached"); return 0; }
static volatile int hits;
static void h(int){ int e=errno; hits++; char b[1]; write(-1,b,1); getppid(); errno=e; }
static void h2(int){ int e=errno; void*b[32]; int n=backtrace(b,32); printf("bt %d\n", n>=4); fflush(stdout); errno=e; }
static void hs(int,siginfo_t*i,void*){ printf("segv %p\n",i->si_addr); fflush(stdout); _exit(7);} 
int main(int c,char**v){
 pipe(p); pthread_t t; pthread_create(&t,0,blocked,0); while(!begun) usleep(1000); usleep(50000); pthread_cancel(t); void*r; pthread_join(t,&r); printf("%d\n", r==PTHREAD_CANCELED); fflush(stdout);
 signal(SIGALRM,h); struct itimerval it={{0,2000},{0,2000}}; setitimer(ITIMER_REAL,&it,0);
 timespec ts={0,100000000},rem; while(nanosleep(&ts,&rem)&&errno==EINTR) ts=rem; while(hits<=20); printf("hits %d\n",hits>20);
 siginterrupt(SIGALRM,1); char b; int e=read(p[0],&b,1); printf("%d %d\n",e,errno==EINTR);
 it={{0,0},{0,0}}; setitimer(ITIMER_REAL,&it,0);
 signal(SIGALRM,h2); alarm(1); e=read(p[0],&b,1); printf("%d %d\n",e,errno==EINTR);
 pid_t k; char*a[]={(char*)"sh",(char*)"-c",(char*)"echo spawned; exit 5",0}; fflush(stdout); posix_spawn(&k,"/bin/sh",0,0,a,environ); int w; waitpid(k,&w,0); printf("%d\n",WEXITSTATUS(w)); fflush(stdout);
 k=vfork(); if(!k){ getppid(); _exit(4);} waitpid(k,&w,0); printf("%d\n",WEXITSTATUS(w)); fflush(stdout);
 k=fork(); if(!k){ printf("child\n"); fflush(stdout); _exit(6);} waitpid(k,&w,0); printf("%d\n",WEXITSTATUS(w));
 struct sigaction sa; memset(&sa,0,sizeof sa); sa.sa_sigaction=hs; sa.sa_flags=SA_SIGINFO; sigaction(SIGSEGV,&sa,0);
 e=write(1,(void*)0x10000,5); printf("%d %d\n",e,errno==EFAULT); e=open((char*)0x10000,0); printf("%d %d\n",e,errno==EFAULT);
 struct sigaction old; sigaction(SIGSEGV,0,&old); printf("still handled %d\n", old.sa_sigaction==hs);
 fflush(stdout);
 *(volatile int*)16=1;
 return 0;}
