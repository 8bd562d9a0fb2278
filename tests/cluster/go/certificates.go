package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	backdated = time.Hour // for clocks that are set back meanwhile
	lifetime  = 365 * 24 * time.Hour
)

// request is one certificate; one with hosts is for a server, each is good for a client.
type request struct {
	Name          string   `json:"name"`
	CommonName    string   `json:"common_name"`
	Organizations []string `json:"organizations"`
	Hosts         []string `json:"hosts"`
}

// writeCertificates reads requests (a JSON list) from standard input and writes ca.crt and ca.key, NAME.crt and
// NAME.key for each, and the key pair that service accounts' tokens are signed with, service-accounts.key and .pub.
func writeCertificates(arguments []string) error {
	if len(arguments) != 1 {
		return errors.New("give one argument, the folder to write to; the requests come from standard input")
	}
	folder := arguments[0]
	requests := []request{}
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &requests); err != nil {
		return fmt.Errorf("the requests are no JSON list of certificates: %w", err)
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	authority, authorityKey, err := writeAuthority(folder)
	if err != nil {
		return err
	}
	for _, wanted := range requests {
		if err := wanted.write(folder, authority, authorityKey); err != nil {
			return fmt.Errorf("%s: %w", wanted.Name, err)
		}
	}
	return writeSigningPair(folder)
}

func writeAuthority(folder string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	template, err := newTemplate("updraft-test-cluster")
	if err != nil {
		return nil, nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage |= x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	authority, err := x509.ParseCertificate(signed)
	if err != nil {
		return nil, nil, err
	}
	return authority, key, writePair(folder, "ca", signed, key)
}

func (wanted request) write(folder string, authority *x509.Certificate, authorityKey *ecdsa.PrivateKey) error {
	template, err := newTemplate(wanted.CommonName)
	if err != nil {
		return err
	}
	template.Subject.Organization = wanted.Organizations
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(wanted.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range wanted.Hosts {
		if address := net.ParseIP(host); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), authorityKey)
	if err != nil {
		return err
	}
	return writePair(folder, wanted.Name, signed, key)
}

func newTemplate(commonName string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    now.Add(-backdated),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}, nil
}

func writePair(folder, name string, certificate []byte, key *ecdsa.PrivateKey) error {
	if err := writePEM(filepath.Join(folder, name+".crt"), "CERTIFICATE", certificate, 0o644); err != nil {
		return err
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(folder, name+".key"), "EC PRIVATE KEY", encoded, 0o600)
}

func writeSigningPair(folder string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(folder, "service-accounts.key"), "EC PRIVATE KEY", private, 0o600); err != nil {
		return err
	}
	return writePEM(filepath.Join(folder, "service-accounts.pub"), "PUBLIC KEY", public, 0o644)
}

func writePEM(path, kind string, content []byte, mode os.FileMode) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), mode)
}
