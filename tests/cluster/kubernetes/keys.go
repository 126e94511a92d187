package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// writeKeys writes what the API server needs into a directory: ca.crt, apiserver.crt, apiserver.key and
// serviceaccount.key. The names in `hosts` and 127.0.0.1 are the ones that the certificate is valid for.
func writeKeys(directory string, hosts []string) error {
	authority, authorityKey, err := certificate("aliquot-cluster", nil, nil, nil)
	if err != nil {
		return err
	}
	server, serverKey, err := certificate("kube-apiserver", hosts, authority, authorityKey)
	if err != nil {
		return err
	}
	serviceAccountKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	write := func(name, kind string, der []byte) {
		if err == nil {
			block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
			err = os.WriteFile(filepath.Join(directory, name), block, 0o600)
		}
	}
	write("ca.crt", "CERTIFICATE", authority.Raw)
	write("apiserver.crt", "CERTIFICATE", server.Raw)
	for name, key := range map[string]*ecdsa.PrivateKey{"apiserver.key": serverKey, "serviceaccount.key": serviceAccountKey} {
		der, marshalErr := x509.MarshalECPrivateKey(key)
		if marshalErr != nil {
			return marshalErr
		}
		write(name, "EC PRIVATE KEY", der)
	}
	return err
}

// certificate makes a key and its certificate: an authority's without a parent, else a server's.
func certificate(name string, hosts []string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		BasicConstraintsValid: true,
	}
	if parent == nil {
		template.IsCA = true
		template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
		parent, parentKey = template, key
	} else {
		template.KeyUsage = x509.KeyUsageDigitalSignature
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		for _, host := range hosts {
			if address := net.ParseIP(host); address != nil {
				template.IPAddresses = append(template.IPAddresses, address)
			} else {
				template.DNSNames = append(template.DNSNames, host)
			}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, err
	}
	made, err := x509.ParseCertificate(der)
	return made, key, err
}

// keys is the part of that name: keys DIRECTORY [HOST...].
func keys(arguments []string) int {
	if len(arguments) == 0 {
		fmt.Fprintln(os.Stderr, "keys: arguments: found none, expected DIRECTORY [HOST...]; name the directory to write to")
		return 2
	}
	if err := writeKeys(arguments[0], arguments[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "keys: %v\n", err)
		return 1
	}
	return 0
}
