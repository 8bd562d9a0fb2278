// Updraft-cluster holds every program of the Kubernetes that the tests run on, in one file.
//
// Which one it is follows from the name it is called by (a link), or from its first argument:
//
//	updraft-cluster kube-apiserver --etcd-servers=...
//
// Called by tests/cluster, which writes their configuration. The programs are Kubernetes', etcd's and CoreDNS' own;
// only `certificates` is ours.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// The parts of CoreDNS that the Corefile names; the list in use follows below.
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
	// Makes the registry of log formats and of metrics complete, as the programs' own main packages do.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func init() {
	// Order of CoreDNS' plugins in the chain of a request; `template` answers for the names that are not the cluster's.
	dnsserver.Directives = []string{"health", "ready", "errors", "kubernetes", "template"}
}

func commands() map[string]func() int {
	return map[string]func() int{
		"etcd": func() int {
			etcdmain.Main(os.Args)
			return 0
		},
		"kube-apiserver":          cobraProgram(apiserver.NewAPIServerCommand),
		"kube-controller-manager": cobraProgram(controllers.NewControllerManagerCommand),
		"kube-scheduler":          cobraProgram(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
		"kubelet":                 cobraProgram(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
		"kubectl": func() int {
			if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
				util.CheckErr(err) // prints as kubectl does, and exits
			}
			return 0
		},
		"coredns": func() int {
			coremain.Run()
			return 0
		},
		"certificates": func() int {
			if err := writeCertificates(os.Args[1:]); err != nil {
				fmt.Fprintln(os.Stderr, "certificates:", err)
				return 1
			}
			return 0
		},
	}
}

func cobraProgram(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func main() {
	known := commands()
	name := filepath.Base(os.Args[0])
	program, found := known[name]
	if !found && len(os.Args) > 1 {
		os.Args = os.Args[1:] // each program sees its own name first
		name = os.Args[0]
		program, found = known[name]
	}
	if !found {
		names := []string{}
		for name := range known {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "%q is no program of this file; it holds: %s\n", name, strings.Join(names, ", "))
		os.Exit(64)
	}
	os.Exit(program())
}
