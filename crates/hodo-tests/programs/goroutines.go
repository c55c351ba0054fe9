// Goroutines, channels, maps, garbage, panics that are recovered, growing stacks, a child process.
package main

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sort"
	"strings"
	"sync"
)

//go:noinline
func deep(n int) int {
	var room [64]int
	room[n%64] = n
	if n == 0 {
		return 0
	}
	return deep(n-1) + room[n%64]&1
}

func guarded(n int) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = errors.New(fmt.Sprint("recovered ", cause))
		}
	}()
	if n%2 == 0 {
		panic(n)
	}
	var none []int
	_ = none[n]
	return nil
}

func main() {
	var group sync.WaitGroup
	results := make(chan int, 100)
	for g := 0; g < 100; g++ {
		group.Add(1)
		go func(g int) {
			defer group.Done()
			words := map[string]int{}
			for i := 0; i < 2000; i++ {
				words[strings.Repeat("x", i%50)+fmt.Sprint(i%100)] += i
			}
			sum := deep(1000)
			for _, n := range words {
				sum += n
			}
			results <- sum + g
		}(g)
	}
	group.Wait()
	close(results)
	var all []int
	for n := range results {
		all = append(all, n)
	}
	sort.Ints(all)
	runtime.GC()
	fmt.Println(len(all), all[0], all[99], deep(100000))
	fmt.Println(guarded(4), guarded(5))
	output, err := exec.Command("/bin/echo", "from a child").Output()
	fmt.Println(string(output), err)
}
