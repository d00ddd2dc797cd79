// The mutex of etcd's own package `concurrency`, driven by lines: `src/driver.rs` says which.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

type answer struct {
	Operations int                `json:"operations"`
	Figures    map[string]float64 `json:"figures"`
}

var sessions []*concurrency.Session

// A client and a session of its own.
func session(at int) (*concurrency.Session, error) {
	for len(sessions) <= at {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}, DialTimeout: 5 * time.Second})
		if err != nil {
			return nil, err
		}
		session, err := concurrency.NewSession(client)
		if err != nil {
			return nil, err
		}
		sessions = append(sessions, session)
	}
	return sessions[at], nil
}

func median(values []float64) float64 {
	sort.Float64s(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

func cycles(name string, window time.Duration) (*answer, error) {
	session, err := session(0)
	if err != nil {
		return nil, err
	}
	mutex, ctx := concurrency.NewMutex(session, "/go/"+name), context.Background()
	cycle := func() error {
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		return mutex.Unlock(ctx)
	}
	for i := 0; i < 3; i++ {
		if err := cycle(); err != nil {
			return nil, err
		}
	}
	var took []float64
	begin := time.Now()
	for before := begin; before.Sub(begin) < window; {
		if err := cycle(); err != nil {
			return nil, err
		}
		now := time.Now()
		took = append(took, float64(now.Sub(before)))
		before = now
	}
	return &answer{len(took), map[string]float64{"median": median(took)}}, nil
}

// Goroutines with a client each that want one lock, each again as soon as it has given it back.
func turns(name string, tasks int, section, window time.Duration) (*answer, error) {
	var inside int32
	var lock sync.Mutex
	var released time.Time
	var gaps []float64
	var longest time.Duration
	var failure error
	each, done, start := make([]float64, tasks), sync.WaitGroup{}, make(chan struct{})
	compete := func(mutex *concurrency.Mutex, turns *float64) error {
		ctx, begin := context.Background(), time.Now()
		for time.Since(begin) < window {
			asked := time.Now()
			if err := mutex.Lock(ctx); err != nil {
				return err
			}
			now := time.Now()
			if atomic.AddInt32(&inside, 1) != 1 {
				return errors.New("two hold at once")
			}
			lock.Lock()
			if released.After(asked) {
				gaps = append(gaps, float64(now.Sub(released)))
			}
			if wait := now.Sub(asked); wait > longest {
				longest = wait
			}
			lock.Unlock()
			*turns++
			time.Sleep(section)
			atomic.AddInt32(&inside, -1)
			lock.Lock()
			released = time.Now()
			lock.Unlock()
			if err := mutex.Unlock(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	for task := range each {
		session, err := session(task)
		if err != nil {
			return nil, err
		}
		mutex, turns := concurrency.NewMutex(session, "/go/"+name), &each[task]
		done.Add(1)
		go func() {
			defer done.Done()
			<-start
			if err := compete(mutex, turns); err != nil {
				lock.Lock()
				failure = err
				lock.Unlock()
			}
		}()
	}
	close(start)
	done.Wait()
	if failure != nil {
		return nil, failure
	}
	sum, squares := 0.0, 0.0
	for _, turns := range each {
		sum += turns
		squares += turns * turns
	}
	figures := map[string]float64{"longest_wait": float64(longest), "jain": sum * sum / (float64(tasks) * squares)}
	if len(gaps) > 0 {
		figures["gap"] = median(gaps)
	}
	return &answer{int(sum), figures}, nil
}

func ask(words []string) (*answer, error) {
	var numbers []int
	for _, word := range words[2:] {
		number, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	if words[0] == "cycles" {
		return cycles(words[1], time.Duration(numbers[0])*time.Millisecond)
	}
	section, window := time.Duration(numbers[1])*time.Microsecond, time.Duration(numbers[2])*time.Millisecond
	return turns(words[1], numbers[0], section, window)
}

func main() {
	fmt.Println("ready")
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		var line []byte
		if answer, err := ask(strings.Fields(input.Text())); err != nil {
			line, _ = json.Marshal(map[string]string{"error": err.Error()})
		} else {
			line, _ = json.Marshal(answer)
		}
		fmt.Println(string(line))
	}
}
